"""`python -m verl_ext.evaluate`: evaluation without training, see docs/evaluate.md.

__main__    the command line
config      the section `evaluate`; composition and checks
questions   rows of the data files as tasks
checkpoint  what evaluate.model names: a Hugging Face folder, a hub name, a checkpoint of a run
llms        what answers: our engine in this process, or an endpoint (`verl_ext.mas.endpoint`)
runner      asks all questions, a bounded number at a time
recall      gold titles among the documents found and chosen
records     trajectories.jsonl: what is done, over kills and resumes
report      results.json, report.md and the closing table
"""

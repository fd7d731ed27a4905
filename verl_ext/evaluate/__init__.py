"""`verl_ext evaluate`: evaluates a checkpoint or an endpoint without training (docs/evaluate.md).

__main__           the command line
config             the section `evaluate`; composition and checks
questions          rows of the data files as tasks
checkpoint         what `evaluate.model` names: a Hugging Face folder, a hub name, a checkpoint of a run
checkpoint_parts   what a checkpoint holds beside the model: adapters, heads, memories
llms               what answers: our engine in this process, or an endpoint (`verl_ext.mas.endpoint`)
runner             asks all questions, a bounded number at a time
answers            trajectories.jsonl: the answers so far, over kills and resumes
recall             gold titles among the documents that were found and chosen
against            paired differences to another evaluation
keep               questions that are neither hopeless nor solved, to train on
report             results.json, report.md and the closing table
"""

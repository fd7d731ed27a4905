"""What a run shows and keeps: metrics, progress, pictures, the trajectory log and its viewer.

question_stats       QuestionStats: what a rollout worker keeps of a question, for metrics
metrics              all our metrics: name, meaning, computation
decisions            metrics of agents that choose who acts next; collapse: warns when they always choose the same
doctor_report        what the checks of the steps found, in words (`verl_ext doctor`)
runlog               metrics.jsonl: a line per step
error_log            error.log: each distinct failure of trajectories, once
progress, summary    what the terminal shows during a run and at its end
sft_log              the log of a fine-tuning, and what the terminal shows of it
plots                the learning curve
record               the trajectory record: what training and evaluation log of a question
trajectories         makes these records from sampled questions
trajectory_files     writes and reads their files
spans                a sampled question as OpenTelemetry spans
viewer               `verl_ext view`: the records of a run or an evaluation as one HTML page
collaboration        the logged decisions as graphs of who acts after whom
graph_layout         where nodes and arrows of such a graph are drawn, in the viewer and in the picture of a run
collaboration_plot   the picture of a run
"""

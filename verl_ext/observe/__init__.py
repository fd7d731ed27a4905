"""What a run shows and keeps: metrics, progress, pictures, the trajectory log and its viewer.

question             QuestionStats: what a rollout worker keeps of a question, for metrics
metrics              all our metrics: name, meaning, computation
decisions            metrics of agents that choose who acts next; collapse: warns when they always choose the same
runlog               metrics.jsonl: a line per step
progress, summary    what the terminal shows during a run and at its end
plots                the learning curve
trajectories         the trajectory log: from sampled questions to records
trajectory_files     its files
viewer               `verl_ext view`: the trajectory log as one HTML page
collaboration        for the viewer: decisions as a graph of who acts after whom
collaboration_plot   the same graph as a picture; graph_plot draws it
"""

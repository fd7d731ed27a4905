"""Reinforcement learning of multi-agent LLM systems, as a plugin of stock verl.

`import verl` finds this package through its entry point and loads `verl_ext.plugin`, which lists everything that is
added to verl. Importing `verl_ext` itself imports neither torch nor verl. docs/rooms.md explains the folders:

mas                     multi-agent systems: agents, workflows, recorded runs, credit
gateway                 programs for the API of OpenAI or Anthropic as such systems
sampling, algorithms    which calls are sampled again and train; rewards to advantages
heads, memory           small policies for choices; memories of agents
tools, rewards, worlds  tools of agents; scores; the generated data sets of the tiny recipes
trainer, engine         the contact with verl: training step and rollouts; model engines
observe                 metrics, progress, the trajectory log and its viewer
evaluate, compare       evaluation without training; several methods at equal budgets
plan                    how long a step would take on N GPUs
storage                 files that survive a kill

Modules beside them: cli (the command `verl_ext`), check, doctor, models, recipe_list and sft (commands);
environments (recipes of other packages), settings (which explain what is wrong), arguments (command lines), reports
(Markdown tables), tracebacks (the user's lines of one).
"""

__version__ = "0.1.0"

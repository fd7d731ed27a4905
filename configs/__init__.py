"""Hydra's configuration files.

recipe/          one file per run (`+recipe=NAME`); `verl_ext recipes` lists them
base/            the parts that recipes consist of; multi_agent.yaml documents every setting of `mas`
sft/             supervised fine-tuning before RL (`+sft=NAME`)
compare/         studies of `verl_ext compare`
evaluate.yaml    the section `evaluate`
"""

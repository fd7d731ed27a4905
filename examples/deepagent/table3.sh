#!/usr/bin/env bash
# Table 3: a row's model on the four benchmarks: examples/deepagent/table3.sh ROW [overrides]. ROW is base (MODEL untrained), or a
# name that train.sh has trained: toolpo, no_folding, no_tool_advantage, grpo.
row=${1:?error: give a row: base, toolpo, no_folding, no_tool_advantage or grpo}
shift
if [ "$row" != base ]; then MODEL=runs/deepagent/training/$row/model NAME=$row; fi
: "${TASKS:=toolbench toolhop webshop gaia}"
. "$(dirname "$0")/common.sh"
SYSTEMS=DeepAgent
# Who was trained without folding, or is to be shown without it, is evaluated without it.
without=()
if [ "$row" = no_folding ]; then without=(mas.workflow.max_folds=0); fi
table search ${without[@]+"${without[@]}"} "$@"

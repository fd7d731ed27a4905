#!/usr/bin/env bash
# Table 5: another backbone, untrained. The larger one, Qwen/Qwen3-235B-A22B-Thinking-2507, needs GPUS=16 of one machine.
: "${MODEL:=Qwen/Qwen3-30B-A3B-Thinking-2507}" "${SYSTEMS:=ReAct PlanAndSolve DeepAgent}"
: "${TASKS:=toolbench toolhop alfworld webshop gaia}"
. "$(dirname "$0")/common.sh"
table search "$@"

#!/usr/bin/env bash
# Table 1: scenario 1 (given) and scenario 2 (search: the agent finds its tools), DeepAgent and the workflows, by MODEL. Figure 1a
# shows some of its numbers. Other rows: THINKING= MODEL=Qwen/Qwen2.5-32B-Instruct SYSTEMS="ReAct CodeAct PlanAndSolve", or a trained one.
: "${SYSTEMS:=DeepAgent ReAct CodeAct PlanAndSolve}" "${TASKS:=toolbench api_bank tmdb spotify toolhop}"
. "$(dirname "$0")/common.sh"
table "${SETTINGS:-given search}" "$@"

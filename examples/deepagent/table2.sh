#!/usr/bin/env bash
# Table 2: tasks with tools of their own, DeepAgent and the workflows, by MODEL. Figure 1b shows some of its numbers.
: "${SYSTEMS:=DeepAgent ReAct CodeAct Reflexion PlanAndSolve}" "${TASKS:=alfworld webshop gaia hle}"
. "$(dirname "$0")/common.sh"
table own "$@"

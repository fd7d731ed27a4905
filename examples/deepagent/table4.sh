#!/usr/bin/env bash
# Table 4: tools that one search for the question finds (retrieved, "Input Retrieved Tool") or that the agent searches for itself
# (search, "Auto. Tool Retrieval"). DeepAgent's rows are of the trained model: MODEL=runs/deepagent/training/toolpo/model.
: "${SYSTEMS:=ReAct PlanAndSolve DeepAgent}" "${TASKS:=toolbench toolhop tmdb spotify}"
. "$(dirname "$0")/common.sh"
table "retrieved search" "$@"

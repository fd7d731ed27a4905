#!/usr/bin/env bash
# Figure 5: success over the limit of actions, DeepAgent and ReAct. The figure's marks are not printed: 10, 20, 30, 40, 50.
: "${TASKS:=webshop gaia}" "${LIMITS:=10 20 30 40 50}"
. "$(dirname "$0")/common.sh"
check webshop
for task_name in $TASKS; do prepare "$task_name" own; done
serve_models
for limit in $LIMITS; do
  for task_name in $TASKS; do
    answer "DeepAgent_$limit" DeepAgent "$task_name" own "mas.workflow.max_actions=$limit" "$@"
    answer "ReAct_$limit" ReAct "$task_name" own "mas.workflow.budget=$limit" "$@"
  done
done

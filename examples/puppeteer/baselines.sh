#!/usr/bin/env bash
# Table 1, rows of pure models (one call) and Self-Refine (answer, feedback, refinement), by MODEL; nothing is trained.
# Settings: common.sh. AFlow, MacNet and EvoAgent are frameworks of other groups.
. "$(dirname "$0")/common.sh"
UNTRAINED=1
fixed=(mas.workflow.orchestration=fixed mas.workflow.width=1)
pure=("${fixed[@]}" "mas.workflow.order=[reasoning]" mas.workflow.depth=1)
refine=("${fixed[@]}" "mas.workflow.order=[reasoning,critique,modify]" mas.workflow.depth=3)
run python -m verl_ext.evaluate --cfg job +recipe=puppeteer "${pure[@]}" "$@" | if [ -n "${DRY_RUN:-}" ]; then cat; else cat >/dev/null; fi
for name in $TASKS; do
  prepare "$name"
  evaluate "pure_$name" "${task[@]}" "${pure[@]}" "$@"
  evaluate "self_refine_$name" "${task[@]}" "${refine[@]}" "$@"
done

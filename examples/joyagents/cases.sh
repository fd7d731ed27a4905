#!/usr/bin/env bash
# Tables 8 to 10: the system as these cases show its prompts, where they differ from Figures 4 to 7. Settings: common.sh.
# The cases themselves, and those of the figures: verl_ext view FOLDER.
. "$(dirname "$0")/common.sh"
settings "$AGENTS"
check "${system[@]}" "$@"
questions "$AGENTS"
starts=()
for row in "8 functions searched output" "9 agents listed answer" "10 agents searched answer"; do
  read -r number found apis remember <<<"$row"
  conversations "${sft}_table$number" "$AGENTS" --history calls --found "$found" --apis "$apis" --remember "$remember"
  cold_start "sft_table$number" "${sft}_table$number" "$AGENTS" 5
  starts+=("${start[*]} mas.workflow.history=calls mas.workflow.found=$found mas.workflow.apis=$apis
    mas.workflow.remember=$remember")
done
simulator
for number in 8 9 10; do
  read -rd '' -a start <<<"${starts[number - 8]}" || true
  train "table$number" "$@"
done

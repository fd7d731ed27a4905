#!/usr/bin/env bash
# Table 7: a master with two, three and four sub-agents, each system with its own data. Settings: common.sh.
. "$(dirname "$0")/common.sh"
systems=("question_agent shop_agent" "question_agent shop_agent math_agent"
  "question_agent shop_agent function_agent math_agent")
settings "${systems[0]}"
check "${system[@]}" "$@"
starts=()
for agents in "${systems[@]}"; do
  settings "$agents"
  conversations "$sft" "$agents"
  questions "$agents"
  cold_start sft "$sft" "$agents" 5
  starts+=("${start[*]}")
done
simulator
for number in 0 1 2; do
  settings "${systems[number]}"
  read -ra start <<<"${starts[number]}"
  train m6 "$@"
done

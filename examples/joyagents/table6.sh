#!/usr/bin/env bash
# Table 6: how many nodes train, K = 1, 2, all (which is M3 of Table 2) and 5 (M6). Settings: common.sh.
. "$(dirname "$0")/common.sh"
settings "$AGENTS"
check "${system[@]}" "$@"
conversations "$sft" "$AGENTS"
questions "$AGENTS"
cold_start sft "$sft" "$AGENTS" 5
simulator
train top1 mas.advantage.top_k=1 "$@"
train top2 mas.advantage.top_k=2 "$@"
train m3 mas.advantage.top_k=0 "$@"
train m6 "$@"

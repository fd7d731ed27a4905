#!/usr/bin/env bash
# Table 2: M1 and M2, fine-tuned for 10 epochs without and with thoughts; M3 to M6, fine-tuned for 5 and trained by RL for 5.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
settings "$AGENTS"
check "${system[@]}" "$@"
conversations "$sft" "$AGENTS"
conversations "${sft}_bare" "$AGENTS" --no_thoughts
questions "$AGENTS"
cold_start sft_bare "${sft}_bare" "$AGENTS" 10
m1=("${start[@]}")
cold_start sft_10 "$sft" "$AGENTS" 10
m2=("${start[@]}")
cold_start sft "$sft" "$AGENTS" 5
rl=("${start[@]}")
simulator
# Fine-tuned models have no memories yet; validation alone.
start=("${m1[@]}") && train m1 trainer.val_only=true mas.memory=null "$@"
start=("${m2[@]}") && train m2 trainer.val_only=true mas.memory=null "$@"
start=("${rl[@]}")
train m3 mas.advantage.top_k=0 "$@"
train m4 mas.credit.efficiency=0 "$@"
train m5 mas.memory=null "$@"
train m6 "$@"

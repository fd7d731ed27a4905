#!/usr/bin/env bash
# JoyAgents-R1 on a laptop's CPU, starting from a random tiny model: first its skills, then supervised fine-tuning by verl's
# SFTTrainer on the agents' noisy demonstrations, then reinforcement learning with memories. Results that exist are not made
# again, so after a kill the same command continues. About 45 minutes of a slow core (skills 30, fine-tuning 7, RL the rest).
#
#   examples/joyagents/train.sh [overrides of the reinforcement learning]
#
#   OUT        folder of everything that is made; runs/joyagents_tiny_from_nothing
#   SKILLS     optimiser steps of the first stage; 1600
#   SIZE       demonstrations of the second stage, 64 a step; 20000
#   DRY_RUN=1  prints the commands, and runs none of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${OUT:=runs/joyagents_tiny_from_nothing}" "${SKILLS:=1600}" "${SIZE:=20000}"
export VERL_PLATFORM=cpu

stage() { echo "== $(date +%T): $*" >&2; }
run() { if [ -n "${DRY_RUN:-}" ]; then printf '%q ' "$@" && echo; else "$@"; fi; }

stage "skills: right demonstrations, a model of 0.8 million parameters"
if [ -n "${DRY_RUN:-}" ] || [ ! -e "$OUT/skills/model.safetensors" ]; then
  run python -m verl_ext.recipe.cold_start.train --world shop --steps "$SKILLS" --habit_steps 0 \
    --output_dir "$OUT/skills"
fi
stage "demonstrations with habits, a file per agent"
run python -m verl_ext.recipe.joyagents.cold_start.sft_demonstrations --output_dir "$OUT/demonstrations" --size "$SIZE"
files=()
for agent in master question_agent shop_agent function_agent math_agent summary intention; do
  files+=("$OUT/demonstrations/$agent.parquet")
done
stage "supervised fine-tuning by verl"
run python -m verl_ext.sft +sft=joyagents_tiny "model.path=$OUT/skills" prepare=null \
  "data.train_files=[$(IFS=,; echo "${files[*]}")]" "data.val_files=$OUT/demonstrations/val.parquet" \
  "trainer.default_local_dir=$OUT/sft"
stage "reinforcement learning"
step=$(cat "$OUT/sft/latest_checkpointed_iteration.txt" 2>/dev/null || echo N)
run python -m verl.trainer.main_ppo +recipe=joyagents_tiny \
  "actor_rollout_ref.model.path=$OUT/sft/global_step_$step/huggingface" "trainer.default_local_dir=$OUT/rl" "$@"

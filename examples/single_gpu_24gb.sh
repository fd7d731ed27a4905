#!/usr/bin/env bash
# MHGPO with LoRA on one GPU of 24 GB: Qwen2.5-1.5B-Instruct on HotpotQA, searching the paragraphs of its own questions
# (BM25, in process). Not the paper's setting. 25 GB of disk, 32 GB of memory. Other settings: table1/common.sh.
#
#   examples/single_gpu_24gb.sh [overrides]
: "${MODEL:=Qwen/Qwen2.5-1.5B-Instruct}"
. "$(dirname "$0")/table1/common.sh"
overrides=(+recipe=mhgpo_24gb "actor_rollout_ref.model.path=$MODEL"
  "trainer.default_local_dir=runs/24gb/$(basename "$MODEL")" "$@")
stage "configuration"
run python -m verl_ext.check --here --gpu_memory 24 "${overrides[@]}"
stage "questions: minutes, 3 GB with the hub's cache"
once data/hotpotqa/corpus.jsonl python data_prep/qa.py hotpotqa --output_dir data/hotpotqa
stage "index of 500,000 paragraphs: minutes"
once data/hotpotqa/index/meta.json python data_prep/corpus.py --input data/hotpotqa/corpus.jsonl \
  --output_dir data/hotpotqa/index
stage "training: 200 steps"
run python -m verl.trainer.main_ppo "${overrides[@]}"

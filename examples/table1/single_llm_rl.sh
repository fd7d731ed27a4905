#!/usr/bin/env bash
# Table 1, row "Single LLM + RL": one agent without passages, trained by GRPO (the paper does not name its algorithm).
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=single ++mas.workflow.retrieve=false mas.tools.search=null "$@")
check "${overrides[@]}"
questions
train single_llm_rl "${overrides[@]}"
evaluate single_llm_rl "$runs/single_llm_rl/model" "${overrides[@]}"
table

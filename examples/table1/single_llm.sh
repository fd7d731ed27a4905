#!/usr/bin/env bash
# Table 1, row "Single LLMs": the untrained model answers from what it knows. Llama3.1-8B; for the other one:
# MODEL=Qwen/Qwen2.5-72B-Instruct TENSOR=8.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=single ++mas.workflow.retrieve=false mas.tools.search=null "$@")
check_evaluation "${overrides[@]}"
questions
evaluate single_llm "$MODEL" "${overrides[@]}"
table

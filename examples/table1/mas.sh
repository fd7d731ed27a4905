#!/usr/bin/env bash
# Table 1, row "LLM + MAS": the three agents on the untrained model. Llama3.1-8B; for the other one:
# MODEL=Qwen/Qwen2.5-72B-Instruct TENSOR=8.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
check_evaluation +recipe=mhgpo "$@"
questions
retrieval
evaluate mas "$MODEL" +recipe=mhgpo "mas.tools.search.url=$retrieval_url" "$@"
table

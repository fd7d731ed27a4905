#!/usr/bin/env bash
# Table 1, row "MHGPO-RR": the three agents, trained on HotpotQA.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=mhgpo mas.sampling.strategy=rr)
check "${overrides[@]}" "$@"
questions
retrieval
overrides+=("mas.tools.search.url=$retrieval_url" "$@")
train mhgpo_rr "${overrides[@]}"
evaluate mhgpo_rr "$runs/mhgpo_rr/model" "${overrides[@]}"
table

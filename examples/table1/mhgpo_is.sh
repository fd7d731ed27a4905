#!/usr/bin/env bash
# Table 1, row "MHGPO-IS": the three agents, trained on HotpotQA.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=mhgpo mas.sampling.strategy=is)
check "${overrides[@]}" "$@"
questions
retrieval
overrides+=("mas.tools.search.url=$retrieval_url" "$@")
train mhgpo_is "${overrides[@]}"
evaluate mhgpo_is "$runs/mhgpo_is/model" "${overrides[@]}"
table

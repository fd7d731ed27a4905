#!/usr/bin/env bash
# Table 1, row "MHGPO-FoF": the three agents, trained on HotpotQA.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=mhgpo mas.sampling.strategy=fof)
check "${overrides[@]}" "$@"
questions
retrieval
overrides+=("mas.tools.search.url=$retrieval_url" "$@")
train mhgpo_fof "${overrides[@]}"
evaluate mhgpo_fof "$runs/mhgpo_fof/model" "${overrides[@]}"
table

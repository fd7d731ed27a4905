#!/usr/bin/env bash
# Table 1, row "MAPPO": the three agents, trained on HotpotQA.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
overrides=(+recipe=mappo)
check "${overrides[@]}" "$@"
questions
retrieval
overrides+=("mas.tools.search.url=$retrieval_url" "$@")
train mappo "${overrides[@]}"
evaluate mappo "$runs/mappo/model" "${overrides[@]}"
table

#!/usr/bin/env bash
# Every row of Table 1 for one MODEL, one after the other, with one retrieval server. Settings: common.sh.
. "$(dirname "$0")/common.sh"
check +recipe=mhgpo "$@"
questions
retrieval
export MODEL GPUS TENSOR RETRIEVAL=$retrieval_url
for row in single_llm mas mhgpo_rr mhgpo_fof mhgpo_is mappo single_llm_rl; do
  "examples/table1/$row.sh" "$@"
done

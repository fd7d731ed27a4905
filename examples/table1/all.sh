#!/usr/bin/env bash
# Every row of Table 1 for one MODEL, one after the other, with one retrieval server; then Figures 5, 6, 8, 9, 11 and 12, of the trained
# rows. Settings: common.sh.
. "$(dirname "$0")/common.sh"
check +recipe=mhgpo "$@"
questions
retrieval
export MODEL GPUS TENSOR RETRIEVAL=$retrieval_url
for row in single_llm mas mhgpo_rr mhgpo_fof mhgpo_is mappo single_llm_rl; do
  "examples/table1/$row.sh" "$@"
done
trained=("$runs/mappo" "$runs/mhgpo_is" "$runs/mhgpo_fof" "$runs/mhgpo_rr")
run python -m verl_ext.compare --output "$runs/figures" --runs "${trained[@]}"
run python -m verl_ext.compare --output "$runs/figure6" --first_steps 50 --runs "${trained[@]}"

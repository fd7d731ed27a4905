#!/usr/bin/env bash
# Table 4: HotpotQA, 100 questions of each level, with a search engine over the questions' own paragraphs: CoT, Zero-Shot Plan, ReAct,
# Reflexion, ReWOO and Smurfs. Settings: common.sh.
. "$(dirname "$0")/common.sh"
data=data/hotpotqa_levels
levels=(+base=hotpotqa "data.val_files=$data/test.parquet" "mas.tools.tool_call.backend.index=$data/index")
check smurfs "${levels[@]}" "$@"
stage "questions and passages: minutes, 3 GB with the hub's cache"
# Of the training split: HotpotQA's own validation questions are all of the level hard.
once "$data/test.parquet" python data_prep/qa.py hotpotqa --split train --per_level 100 --output_dir "$data"
once "$data/index" python data_prep/corpus.py --input "$data/corpus.jsonl" --output_dir "$data/index"
serve_model
for baseline in CoT PlanAndSolve Reflexion ReWOO; do
  row "hotpotqa_$baseline" baseline "mas.workflow._target_=verl_ext.recipe.baselines.$baseline" "${levels[@]}" "$@"
done
row hotpotqa_ReAct smurfs_react "${levels[@]}" "$@"
row hotpotqa_Smurfs smurfs "${levels[@]}" "$@"

#!/usr/bin/env bash
# Table 5: Smurfs on StableToolBench's I3-Inst., whole and without one agent each. Settings: common.sh.
. "$(dirname "$0")/common.sh"
data=data/toolbench_g3
subset=("data.val_files=$data/test.parquet" "mas.tools.tool_search.sources=[{kind: toolbench, path: $data/tools.jsonl}]")
subset+=("${apis[@]}")
check smurfs "${subset[@]}" "${judged[@]}" "${stable[@]}" "$@"
stage "tasks: minutes"
once "$data/test.parquet" python data_prep/tools.py toolbench --sets G3_instruction --output_dir "$data" \
  ${TOOLBENCH:+--local_dataset_path "$TOOLBENCH"}
serve_simulator
serve_model
if [ -n "${JUDGE:-}" ]; then
  row i3_react smurfs_react "${subset[@]}" "${judged[@]}" "${react[@]}" "$@"
  reference i3_react "$data/test.parquet"
fi
row i3_smurfs smurfs "${subset[@]}" "${judged[@]}" "${stable[@]}" "$@"
for agent in answerer verifier planner; do
  row "i3_without_$agent" smurfs "${subset[@]}" "${judged[@]}" "${stable[@]}" "mas.workflow.$agent=false" "$@"
done

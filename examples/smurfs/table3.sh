#!/usr/bin/env bash
# Tables 1, 3 and 7: ReAct, DFSDT and Smurfs on StableToolBench, by subset: success (JUDGE: pass and win rate), tokens per query and per
# request. Settings: common.sh.
. "$(dirname "$0")/common.sh"
check smurfs "${apis[@]}" "${judged[@]}" "${stable[@]}" "$@"
toolbench
serve_simulator
serve_model
row react smurfs_react "${apis[@]}" "${judged[@]}" "${react[@]}" "$@"
reference react data/toolbench/test.parquet
row dfsdt smurfs_dfsdt "${apis[@]}" "${judged[@]}" "${dfsdt[@]}" "$@"
row smurfs smurfs "${apis[@]}" "${judged[@]}" "${stable[@]}" "$@"

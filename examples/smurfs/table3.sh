#!/usr/bin/env bash
# Tables 1, 3 and 7: ReAct, DFSDT and Smurfs on StableToolBench, by subset: success, tokens per query and per request.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
check smurfs "${apis[@]}" "$@"
toolbench
serve_simulator
serve_model
row react smurfs_react "${apis[@]}" "$@"
row dfsdt smurfs_dfsdt "${apis[@]}" "$@"
row smurfs smurfs "${apis[@]}" "$@"

#!/usr/bin/env bash
# DeepAgent on benchmarks of Tables 1 to 4: examples/deepagent/evaluate.sh "tmdb spotify" [overrides]. Settings: common.sh.
#
#   NAME       the row's name in the folder of results; base, or the name that train.sh gave, with MODEL=its folder
#   TOOLBENCH  folder of ToolBench's `instruction`
#   API_BANK   clone of API-Bank; scenario 1 takes its level 1, scenario 2 its level 3
benchmarks=${1:?error: give benchmarks, for example "tmdb spotify"}
shift
. "$(dirname "$0")/common.sh"
: "${NAME:=base}"
need vllm
for benchmark in $benchmarks; do prepare "$benchmark"; done
serve_models "$MODEL"
for benchmark in $benchmarks; do answer "$NAME-$SETTING" "$benchmark" "$@"; done

# Parts shared by the scripts of this folder, which source this file. The paper trains nothing: each row is an evaluation. Hydra
# overrides may follow every script's name.
#
#   MODEL      one of the paper's open models: mistralai/Mistral-7B-Instruct-v0.2; meta-llama/Llama-2-13b-chat-hf or 70b
#   SIMULATOR  the model that plays the APIs; Qwen/Qwen2.5-32B-Instruct
#   GPUS       of this machine; 8. The first half serves SIMULATOR, the second half MODEL
#   TOOLBENCH  StableToolBench's solvable queries; downloaded from its repository if it is not given
#   VARIANT    a suffix of the folder of results, for other overrides than before; judged if JUDGE is given
#   JUDGE      url of an OpenAI-compatible server whose model gives the pass rate, from three evaluations of an answer, and the
#              win rate against ReAct's answers; without it success is the gold path (mas.judge.model: its name there)
#   REFERENCE  questions with other answers to win against (reference.py)
#   CACHE      its folder tool_response_cache: recorded results of the real APIs, which come before SIMULATOR
#
# All systems share one cache of API results, runs/smurfs/api_cache.db, so that the same call has the same result.
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=mistralai/Mistral-7B-Instruct-v0.2}" "${SIMULATOR:=Qwen/Qwen2.5-32B-Instruct}" "${GPUS:=8}"
: "${VARIANT:=${JUDGE:+judged}}"
half=$((GPUS / 2))
runs=runs/smurfs/$(basename "$MODEL")${VARIANT:+_$VARIANT}
refuse_overrides 'mas.tools.tool_call.backend.cache|evaluate.output' "$@"
need python

gpus() { seq -s, "$1" $(($1 + half - 1)); }

# check RECIPE OVERRIDES…: is the configuration right? Asked before anything is downloaded.
check() {
  stage "configuration"
  local command=(python -m verl_ext.evaluate --cfg job "+recipe=$1" "${@:2}")
  if [ -n "${DRY_RUN:-}" ]; then run "${command[@]}"; else "${command[@]}" >/dev/null; fi
  need vllm
}

# toolbench: the six subsets of StableToolBench, each query with its whole api_list.
toolbench() {
  stage "tasks: minutes, under 1 GB"
  once data/toolbench/test.parquet python data_prep/tools.py toolbench --output_dir data/toolbench \
    ${TOOLBENCH:+--local_dataset_path "$TOOLBENCH"}
}

# serve_model: MODEL on the second half of the GPUs.
serve_model() {
  stage "server of the agents: minutes (log: agents.log)"
  serve agents http://127.0.0.1:8200/health env "CUDA_VISIBLE_DEVICES=$(gpus "$half")" vllm serve "$MODEL" --port 8200 \
    --served-model-name agents --generation-config vllm --data-parallel-size "${DATA_PARALLEL:-$half}" \
    --tensor-parallel-size "$((half / ${DATA_PARALLEL:-$half}))"
}

# serve_simulator: SIMULATOR on the first half.
serve_simulator() {
  stage "server of the simulated APIs: minutes (log: simulator.log)"
  serve simulator http://127.0.0.1:8100/health env "CUDA_VISIBLE_DEVICES=$(gpus 0)" vllm serve "$SIMULATOR" --port 8100 \
    --served-model-name simulator --generation-config vllm --tensor-parallel-size "$half"
}

# row NAME RECIPE OVERRIDES…: evaluates one system. What failed is asked again by the same command.
row() {
  local output=$runs/$1 recipe=$2
  shift 2
  if have "$output/finished"; then echo "   there already: $output" >&2 && return; fi
  stage "evaluation: $output"
  run python -m verl_ext.evaluate "+recipe=$recipe" evaluate.endpoint=http://127.0.0.1:8200/v1 evaluate.model=agents \
    "evaluate.output=$output" evaluate.concurrency=64 "$@"
  if complete "$output/results.json"; then
    run touch "$output/finished"
  else
    echo "   some questions failed, see $output/report.md; the same command asks them again" >&2
  fi
}

# reference ROW QUESTIONS: the rows that follow are compared with this row's answers, unless REFERENCE names others.
reference() {
  if [ -z "${JUDGE:-}" ] || [ -n "${REFERENCE:-}" ]; then return; fi
  once "$runs/$1_reference.parquet" python examples/smurfs/reference.py --run "$runs/$1" --questions "$2" \
    --output "$runs/$1_reference.parquet"
  judged+=("data.val_files=$runs/$1_reference.parquet")
}

judged=()
if [ -n "${JUDGE:-}" ]; then judged+=(mas.workflow.success=pass "mas.judge.url=$JUDGE"); fi
if [ -n "${REFERENCE:-}" ]; then judged+=("data.val_files=$REFERENCE"); fi
# StableToolBench's settings, which the paper follows: 1,024 characters of a response; 12 steps of ReAct, 60 of DFSDT; a system that
# does not finish within them has no answer.
stable=(mas.workflow.max_result_chars=1024)
# shellcheck disable=SC2034  # the scripts read them
react=("${stable[@]}" mas.workflow.budget=12 mas.workflow.last_answer=false)
# shellcheck disable=SC2034
dfsdt=("${stable[@]}" mas.workflow.budget=60 mas.workflow.last_answer=false)
# The same API results for all systems (Section 4.1, Settings).
apis=(mas.tools.tool_call.backend.cache=runs/smurfs/api_cache.db)
if [ -n "${CACHE:-}" ]; then apis+=("mas.tools.tool_call.recorded=$CACHE"); fi

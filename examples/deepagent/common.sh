# Parts shared by the scripts of this folder, which source this file. Hydra overrides may follow every script's name.
#
#   MODEL      the policy; Qwen/QwQ-32B, the paper's backbone
#   AUXILIARY  the auxiliary model, which also plays the tools; Qwen/Qwen2.5-32B-Instruct, the paper's
#   GPUS       of this machine; 8. In an evaluation the first half serves AUXILIARY, the second half MODEL
#   SETTING    search: the agent finds its tools (scenario 2); given: it is shown them (scenario 1); retrieved: Table 4's
#              "Input Retrieved Tool"
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=Qwen/QwQ-32B}" "${AUXILIARY:=Qwen/Qwen2.5-32B-Instruct}" "${GPUS:=8}" "${SETTING:=search}"
half=$((GPUS / 2))
runs=runs/deepagent/$(basename "$MODEL")
refuse_overrides 'trainer.default_local_dir|actor_rollout_ref.model.path|mas.workflow.tools' "$@"
need python

# prepare BENCHMARK: its questions and tools.
prepare() {
  local folder=data/$1
  stage "questions of $1: minutes"
  case $1 in
    toolbench)
      : "${TOOLBENCH:?error: TOOLBENCH is needed, the folder \`instruction\` of ToolBench, unpacked}"
      once "$folder/test.parquet" python data_prep/tools.py toolbench --sets G3_instruction --output_dir "$folder" \
        --local_dataset_path "$TOOLBENCH"
      ;;
    tmdb | spotify)
      folder=data/restbench_$1
      once "$folder/test.parquet" python data_prep/tools.py restbench --scenario "$1" --output_dir "$folder"
      ;;
    api_bank)
      : "${API_BANK:?error: API_BANK is needed, a clone of API-Bank with test-data/level-3.json of the hub}"
      if [ "$SETTING" = given ]; then
        once "$folder/test.parquet" python data_prep/tools.py api_bank --levels 1 --unit end_to_end --output_dir "$folder" \
          --local_dataset_path "$API_BANK"
      else
        once "${folder}_3/test.parquet" python data_prep/tools.py api_bank --levels 3 --output_dir "${folder}_3" \
          --local_dataset_path "$API_BANK"
      fi
      ;;
    toolhop) once "$folder/test.parquet" python data_prep/tools.py "$1" --output_dir "$folder" ;;
    webshop)
      once "$folder/test.parquet" python data_prep/environments.py webshop --goals 0 500 --output_dir "$folder"
      ;;
    *) echo "error: there is no benchmark $1; there are toolbench, tmdb, spotify, api_bank, toolhop, webshop" >&2; exit 2 ;;
  esac
}

gpus() { seq -s, "$1" $(($1 + half - 1)); }

# serve_models MODEL: the auxiliary model on the first half of the GPUs, MODEL on the second.
serve_models() {
  stage "servers: minutes (logs: auxiliary.log, policy.log)"
  serve auxiliary http://127.0.0.1:8100/health env "CUDA_VISIBLE_DEVICES=$(gpus 0)" vllm serve "$AUXILIARY" --port 8100 \
    --served-model-name auxiliary --generation-config vllm --tensor-parallel-size "$half"
  # The paper's repetition penalty is a setting of the server; why the parser: docs/toolpo.md.
  serve policy http://127.0.0.1:8200/health env "CUDA_VISIBLE_DEVICES=$(gpus "$half")" vllm serve "$1" --port 8200 \
    --served-model-name policy --generation-config vllm --tensor-parallel-size "$half" --max-model-len 40960 \
    --override-generation-config '{"repetition_penalty": 1.05}' --reasoning-parser deepseek_r1
}

# answer NAME BENCHMARK OVERRIDES…: answers a benchmark's questions. What failed is asked again by the same command.
answer() {
  local name=$1 benchmark=$2 output=$runs/$1/$2 setting=$SETTING recipe=deepagent_$2
  local -a level=()
  shift 2
  if [ "$benchmark" = api_bank ] && [ "$setting" != given ]; then
    level=(data.val_files=data/api_bank_3/test.parquet mas.tools.tool_call.recorded=data/api_bank_3/recorded.jsonl
      "mas.tools.tool_search.sources=[{kind: api_bank, path: data/api_bank_3/tools.jsonl}]")
  fi
  case $benchmark in toolbench) recipe=deepagent ;; webshop) setting=given ;; esac  # a shop shows its two tools
  if have "$output/finished"; then echo "   there already: $output" >&2 && return; fi
  stage "evaluation of $name on $benchmark"
  # An answer of 8,192 tokens takes minutes on a busy server.
  run python -m verl_ext.evaluate "+recipe=$recipe" "mas.workflow.tools=$setting" evaluate.endpoint=http://127.0.0.1:8200/v1 \
    evaluate.model=policy "evaluate.output=$output" evaluate.request_timeout=900 mas.limits.call_timeout=1700 \
    ${level[@]+"${level[@]}"} "$@"
  if complete "$output/results.json"; then run touch "$output/finished"; fi
}

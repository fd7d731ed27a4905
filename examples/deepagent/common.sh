# Parts shared by the scripts of this folder, which source this file. Hydra overrides may follow every script's name.
#
#   MODEL      the policy: Qwen/QwQ-32B, the paper's backbone, or what train.sh has made (…/model)
#   NAME       of the folder of results; MODEL's by default
#   AUXILIARY  the auxiliary model, which also plays the tools and judges; Qwen/Qwen2.5-32B-Instruct, the paper's
#   GPUS       of this machine; 8. The first half serves AUXILIARY, the second half MODEL
#   THINKING   1; empty for a MODEL without <think>, as Qwen2.5
#   CONTEXT    tokens of MODEL's prompt and output together; 40960, all that QwQ-32B takes without YaRN
#   SYSTEMS    "DeepAgent ReAct", or some others of the baselines; each script has the rows of its table as default
#   TASKS      benchmarks of a table; each script has those of its table as default
#   TOOLBENCH  ToolBench's folder `data`, unpacked: instruction (training), test_instruction, retrieval
#   API_BANK   a clone of API-Bank; GAMES: the games of alfworld-download; GAIA, HLE: files of questions, both gated
#   SEARCH     address of a retrieval server, for GAIA and HLE (docs/web.md)
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=Qwen/QwQ-32B}" "${AUXILIARY:=Qwen/Qwen2.5-32B-Instruct}" "${GPUS:=8}" "${CONTEXT:=40960}" "${THINKING=1}"
half=$((GPUS / 2))
: "${NAME:=$(if [ "$(basename "$MODEL")" = model ]; then basename "$(dirname "$MODEL")"; else basename "$MODEL"; fi)}"
runs=runs/deepagent
refuse_overrides 'trainer.default_local_dir|actor_rollout_ref.model.path|mas.workflow.tools|evaluate.output' "$@"
need python

given() {  # VARIABLE TEXT: ends the script if the variable is not set
  if [ -z "${!1:-}" ]; then echo "error: $1 is needed, $2" >&2 && exit 2; fi
}

# prepare TASK SETTING: its questions and tools.
prepare() {
  local folder=data/$1 g
  stage "questions of $1: minutes"
  case $1 in
    toolbench)
      given TOOLBENCH "ToolBench's folder \`data\`, unpacked"
      local corpus=()
      for g in G1 G2 G3; do corpus+=("$TOOLBENCH/retrieval/$g/corpus.tsv"); done
      once data/toolbench_g3/test.parquet python data_prep/tools.py toolbench --sets G3_instruction \
        --output_dir data/toolbench_g3 --local_dataset_path "$TOOLBENCH/test_instruction" --corpus "${corpus[@]}"
      ;;
    tmdb | spotify)
      folder=data/restbench_$1
      once "$folder/test.parquet" python data_prep/tools.py restbench --scenario "$1" --output_dir "$folder"
      ;;
    api_bank)
      given API_BANK "a clone of API-Bank with test-data/level-3.json of the hub"
      if [ "$2" = given ]; then
        once "$folder/test.parquet" python data_prep/tools.py api_bank --levels 1 --unit end_to_end --output_dir "$folder" \
          --local_dataset_path "$API_BANK"
      else
        once "${folder}_3/test.parquet" python data_prep/tools.py api_bank --levels 3 --output_dir "${folder}_3" \
          --local_dataset_path "$API_BANK"
      fi
      ;;
    toolhop) once "$folder/test.parquet" python data_prep/tools.py "$1" --output_dir "$folder" ;;
    # The paper's percentages are multiples of 1/250 for WebShop, and of 1/134 for ALFWorld (valid_unseen).
    webshop) once "$folder/test.parquet" python data_prep/environments.py webshop --goals 0 250 --output_dir "$folder" ;;
    alfworld)
      given GAMES "the folder json_2.1.1/valid_unseen of alfworld-download"
      once "$folder/test.parquet" python data_prep/environments.py alfworld --output_dir "$folder" --local_dataset_path "$GAMES"
      ;;
    gaia | hle)
      local file=${1^^}
      given "$file" "the questions: a file or a folder (data_prep/reasoning.py --help)"
      given SEARCH "the address of a retrieval server"
      once "$folder/test.parquet" python data_prep/reasoning.py "$1" --output_dir "$folder" --local_dataset_path "${!file}"
      ;;
    *)
      echo "error: no task $1; there are toolbench, tmdb, spotify, api_bank, toolhop, webshop, alfworld, gaia, hle" >&2
      exit 2
      ;;
  esac
}

gpus() { seq -s, "$1" $(($1 + half - 1)); }

# serve_models: the auxiliary model on the first half of the GPUs, MODEL on the second.
serve_models() {
  need vllm
  stage "servers: minutes (logs: auxiliary.log, policy.log)"
  serve auxiliary http://127.0.0.1:8100/health env "CUDA_VISIBLE_DEVICES=$(gpus 0)" vllm serve "$AUXILIARY" --port 8100 \
    --served-model-name auxiliary --generation-config vllm --tensor-parallel-size "$half"
  local thinking=()
  if [ -n "$THINKING" ]; then  # why: docs/toolpo.md, "Sequences over a server"
    thinking=(--reasoning-parser deepseek_r1 --chat-template examples/deepagent/qwen_thinking.jinja)
  fi
  # The paper's repetition penalty is a setting of the server.
  serve policy http://127.0.0.1:8200/health env "CUDA_VISIBLE_DEVICES=$(gpus "$half")" vllm serve "$MODEL" --port 8200 \
    --served-model-name policy --generation-config vllm --tensor-parallel-size "$half" --max-model-len "$CONTEXT" \
    --override-generation-config '{"repetition_penalty": 1.05}' ${thinking[@]+"${thinking[@]}"}
}

# options SYSTEM TASK SETTING: sets `recipe`, and `task`, the overrides that the task needs.
options() {
  local setting=$3
  recipe=deepagent_$2 task=()
  case $2 in
    toolbench)  # Success is a judge's, Path the relevant APIs that were called
      recipe=deepagent
      task=(data.val_files=data/toolbench_g3/test.parquet mas.workflow.success=pass mas.judge.url=http://127.0.0.1:8100/v1
        "mas.tools.tool_search.sources=[{kind: toolbench, path: data/toolbench_g3/tools.jsonl}]")
      ;;
    api_bank)
      if [ "$setting" != given ]; then
        task=(data.val_files=data/api_bank_3/test.parquet mas.tools.tool_call.recorded=data/api_bank_3/recorded.jsonl
          "mas.tools.tool_search.sources=[{kind: api_bank, path: data/api_bank_3/tools.jsonl}]")
      fi
      ;;
    alfworld) task=("mas.tools.environment.games=$GAMES") ;;
    gaia | hle)  # the authors let the auxiliary model say whether an answer is equivalent
      task=(mas.workflow.success=hle mas.judge.url=http://127.0.0.1:8100/v1 mas.tools.web_search.mode=live
        "mas.tools.web_search.url=$SEARCH" mas.tools.access_website.mode=live)
      if [ "$2" = gaia ]; then task+=("mas.tools.read_file.folder=$(if [ -d "$GAIA" ]; then echo "$GAIA"; else dirname "$GAIA"; fi)"); fi
      ;;
  esac
  case $2 in
    webshop | alfworld) setting=given ;;  # an environment shows its few actions
    gaia | hle) setting= ;;  # so do these: a few tools
  esac
  task+=(${setting:+"mas.workflow.tools=$setting"})
  if [ "$1" != DeepAgent ]; then
    task=(+base=deepagent_baseline "mas.workflow._target_=verl_ext.recipe.baselines.$1" "${task[@]}")
    case $2 in webshop | alfworld) task+=(mas.workflow.environment=environment) ;; esac
  fi
}

# answer ROW SYSTEM TASK SETTING OVERRIDES…: answers a benchmark's questions. What failed is asked again by the same command.
answer() {
  local output=$runs/$NAME/$1/$3-$4 recipe
  local -a task
  options "$2" "$3" "$4"
  if have "$output/finished"; then echo "   there already: $output" >&2 && return; fi
  stage "evaluation of $1 on $3, tools: $4"
  # An answer of 8,192 tokens takes minutes on a busy server.
  run python -m verl_ext.evaluate "+recipe=$recipe" "${task[@]}" evaluate.endpoint=http://127.0.0.1:8200/v1 \
    evaluate.model=policy "evaluate.output=$output" evaluate.request_timeout=900 "${@:5}"
  if complete "$output/results.json"; then
    run touch "$output/finished"
  else
    echo "   some questions failed, see $output/report.md; the same command asks them again" >&2
  fi
}

# check TASK OVERRIDES…: is the configuration right? Asked before anything is downloaded.
check() {
  stage "configuration"
  local command=(python -m verl_ext.evaluate --cfg job "+recipe=deepagent_$1" "${@:2}")
  if [ -n "${DRY_RUN:-}" ]; then run "${command[@]}"; else "${command[@]}" >/dev/null; fi
}

# table SETTINGS OVERRIDES…: each of TASKS under each setting, by each of SYSTEMS.
table() {
  local settings=$1 setting task_name system
  shift
  check webshop
  for task_name in $TASKS; do for setting in $settings; do prepare "$task_name" "$setting"; done; done
  serve_models
  for task_name in $TASKS; do
    for setting in $settings; do
      for system in $SYSTEMS; do answer "$system" "$system" "$task_name" "$setting" "$@"; done
    done
  done
}

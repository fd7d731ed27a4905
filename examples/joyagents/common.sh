# Parts shared by the table scripts of this folder, which source this file. Hydra overrides may follow every script's name.
#
#   MODEL      the base model; Qwen/Qwen2.5-3B-Instruct
#   POLICY     shared: one fine-tuned checkpoint for all agents; per_agent_lora: an adapter for each, fine-tuned by itself
#   GPUS       of this machine; 8. All of them fine-tune. Then the last two serve the model that plays ToolBench's APIs,
#              and the others train (in the paper: two sample by vLLM, six train)
#   SIMULATOR  that model; Qwen/Qwen2.5-32B-Instruct
#   AGENTS     the sub-agents, for Table 7
#   GSM8K, TOOLBENCH  folders of the data instead of the hub
#   COIG       file or folder of COIG, for 30 % of the questions to the QA agent; without it all are about the shop's rules
#
# Accuracies and rounds are those of validation on the 500 test questions; the best checkpoint is kept in best/, and the
# curve, metrics.jsonl and best.json of a run's folder have the numbers.
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=Qwen/Qwen2.5-3B-Instruct}" "${POLICY:=shared}" "${GPUS:=8}" "${SIMULATOR:=Qwen/Qwen2.5-32B-Instruct}"
: "${AGENTS:=question_agent shop_agent function_agent math_agent}"
training=$((GPUS - 2))
refuse_overrides 'trainer.default_local_dir|actor_rollout_ref.model.path|mas.policy|mas.workflow.specialists' "$@"
need python

# settings AGENTS: the folders and overrides of a system with these sub-agents. Sets `data`, `sft`, `runs`, `system`.
settings() {
  local name
  name=$(wc -w <<<"$1")
  data=data/joyagents_$name
  # shellcheck disable=SC2034  # read by the scripts
  sft=data/joyagents_sft_$name
  runs=runs/joyagents_$name/$(basename "$MODEL")
  system=(+recipe=joyagents "mas.workflow.specialists=[${1// /,}]" "data.train_files=$data/train.parquet"
    "data.val_files=$data/test.parquet" "mas.tools.knowledge.corpus=$data/knowledge.jsonl"
    "trainer.n_gpus_per_node=$training")
  if [[ " $1 " == *" function_agent "* ]]; then
    system+=("mas.tools.function_search.sources=[{kind: toolbench, path: $data/tools.jsonl}]"
      "mas.tools.function_call.backend.cache=$data/simulator.db")
  else
    system+=(mas.tools.function_search=null mas.tools.function_call=null)
  fi
}

# check OVERRIDES…: is a training's configuration right, and can this machine run it? Asked before hours are spent.
check() {
  stage "configuration"
  run python -m verl_ext.check --here "actor_rollout_ref.model.path=$MODEL" "$@"
}

local_data=(${GSM8K:+--gsm8k "$GSM8K"} ${TOOLBENCH:+--toolbench "$TOOLBENCH"} ${COIG:+--coig "$COIG"})

# questions AGENTS: of RL.
questions() {
  local agents
  read -ra agents <<<"$1"
  stage "questions: minutes"
  once "$data/knowledge.jsonl" python -m verl_ext.recipe.joyagents.data.rl_questions --output_dir "$data" \
    --specialists "${agents[@]}" "${local_data[@]}"
}

# conversations FOLDER AGENTS OPTIONS…: of fine-tuning.
conversations() {
  local folder=$1 agents
  read -ra agents <<<"$2"
  shift 2
  stage "conversations: minutes"
  once "$folder/val.parquet" python -m verl_ext.recipe.joyagents.data.sft_conversations --output_dir "$folder" \
    --specialists "${agents[@]}" "${local_data[@]}" "$@"
}

# fine_tune FOLDER FILES EPOCHS OVERRIDES…: Table 3. Sets `tuned`, the folder of the model.
fine_tune() {
  local folder=$1 files=$2 epochs=$3 step=N
  shift 3
  stage "fine-tuning in $folder: goes on from its last checkpoint"
  run python -m torch.distributed.run --nproc-per-node "$GPUS" -m verl_ext.sft "model.path=$MODEL" \
    "data.train_files=[$files]" "trainer.total_epochs=$epochs" "trainer.default_local_dir=$folder" "$@"
  if [ -z "${DRY_RUN:-}" ]; then step=$(cat "$folder/latest_checkpointed_iteration.txt"); fi
  tuned=$folder/global_step_$step/huggingface
}

# cold_start NAME DATA AGENTS EPOCHS: fine-tunes the system by POLICY. Sets `start`, the overrides by which RL begins there.
cold_start() {
  local name=$1 folder=$2 others=$3 epochs=$4 agent
  start=("mas.policy=$POLICY" "actor_rollout_ref.model.path=$MODEL")
  if [ "$POLICY" = shared ]; then
    local files=("$folder/master.parquet")
    for agent in $others; do files+=("$folder/$agent.parquet"); done
    fine_tune "$runs/$name" "$(IFS=,; echo "${files[*]}")" "$epochs" +sft=joyagents "data.val_files=$folder/val.parquet"
    start[1]=actor_rollout_ref.model.path=$tuned
    return
  fi
  for agent in master $others; do
    fine_tune "$runs/$name/$agent" "$folder/$agent.parquet" "$epochs" +sft=joyagents_agent "agent=$agent"
    start+=("+mas.policy_init.$agent=${tuned%/huggingface}/adapters/$agent")
  done
}

# simulator: the model that plays ToolBench's APIs, on the last two GPUs. The commands after it have the others.
simulator() {
  stage "simulator: minutes (log: simulator.log)"
  export CUDA_VISIBLE_DEVICES
  CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((training - 1)))
  serve simulator http://127.0.0.1:8100/health env "CUDA_VISIBLE_DEVICES=$training,$((training + 1))" vllm serve "$SIMULATOR" \
    --port 8100 --served-model-name simulator --generation-config vllm --tensor-parallel-size 2
}

# train NAME OVERRIDES…: a row.
train() {
  local name=$1 folder=$runs/$1
  shift
  if have "$folder/trained"; then echo "   there already: $folder" >&2 && return; fi
  stage "training $name: 100 steps, goes on from its last checkpoint"
  run python -m verl.trainer.main_ppo "${system[@]}" "${start[@]}" "trainer.experiment_name=$name" \
    "trainer.default_local_dir=$folder" "$@"
  run touch "$folder/trained"
}

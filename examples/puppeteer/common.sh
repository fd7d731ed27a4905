# Parts shared by the scripts of this folder, which source this file. Hydra overrides may follow every script's name.
#
#   MODEL      the orchestrator's base, which also answers for the puppets of the mono pool; meta-llama/Llama-3.1-8B-Instruct
#   GPUS       of this machine; 8. With POOL=mimas those that are left beside its servers, as CUDA_VISIBLE_DEVICES has them
#   TASKS      "gsm_hard mmlu_pro commongen_hard srdd", or some of them
#   POOL       mono; mimas or titan: configs/base/puppeteer_$POOL.yaml, whose servers must run (docs/reproduce/puppeteer.md)
#   JUDGE      url of the judge's server, for commongen_hard and srdd
#   COMMONGEN  commongen_hard.jsonl of Self-Refine; SRDD: data_attribute_format.csv of ChatDev. Neither is on the hub
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=meta-llama/Llama-3.1-8B-Instruct}" "${GPUS:=8}" "${TASKS:=gsm_hard mmlu_pro}" "${POOL:=mono}"
runs=runs/puppeteer/$(basename "$MODEL")/$POOL
refuse_overrides 'trainer.default_local_dir|actor_rollout_ref.model.path' "$@"
need python
case $POOL in
  mono) pool=() ;;
  mimas | titan) pool=("+base=puppeteer_$POOL") ;;
  *) echo "error: POOL=$POOL must be mono, mimas or titan" >&2; exit 2 ;;
esac

# prepare TASK: its questions. Sets `task`, the overrides that the task needs.
prepare() {
  task=("data.train_files=data/$1/train.parquet" "data.val_files=data/$1/test.parquet")
  local file=()
  stage "questions of $1: minutes"
  case $1 in
    gsm_hard | mmlu_pro) ;;
    commongen_hard) file=(--local_dataset_path "${COMMONGEN:?error: COMMONGEN is needed, the file commongen_hard.jsonl}") ;;
    srdd) file=(--local_dataset_path "${SRDD:?error: SRDD is needed, the file data_attribute_format.csv}") ;;
    *) echo "error: there is no task $1; there are gsm_hard, mmlu_pro, commongen_hard and srdd" >&2; exit 2 ;;
  esac
  if [ ${#file[@]} -gt 0 ]; then
    task+=(mas.workflow.judge=true "mas.judge.url=${JUDGE:?error: JUDGE is needed, the url of the judge\'s server}")
  fi
  once "data/$1/test.parquet" python data_prep/reasoning.py "$1" --output_dir "data/$1" "${file[@]}"
}

# check OVERRIDES…: is the training's configuration right, and can this machine run it? Asked before hours are spent.
check() {
  stage "configuration"
  run python -m verl_ext.check --here "actor_rollout_ref.model.path=$MODEL" "trainer.n_gpus_per_node=$GPUS" \
    +recipe=puppeteer "${pool[@]}" "$@"
}

# train NAME OVERRIDES…: trains the orchestrator's adapter; the best checkpoint by validation is kept in best/.
train() {
  local name=$1 folder=$runs/$1
  shift
  if have "$folder/trained"; then echo "   there already: $folder/trained" >&2 && return; fi
  stage "training $name: hours; goes on from its last checkpoint"
  run python -m verl.trainer.main_ppo +recipe=puppeteer "${pool[@]}" "actor_rollout_ref.model.path=$MODEL" \
    "trainer.n_gpus_per_node=$GPUS" "trainer.experiment_name=$name" "trainer.default_local_dir=$folder" \
    trainer.keep_best=val/system/accuracy "$@"
  run touch "$folder/trained"
}

# evaluate NAME OVERRIDES…: answers the test questions with $MODEL, and with the adapter of the training NAME if there is one.
evaluate() {
  local name=$1 output=$runs/$1/eval step=LAST lora=() policy=shared
  shift
  if have "$output/finished"; then echo "   there already: $output" >&2 && return; fi
  if [ -n "${DRY_RUN:-}" ] || [ -e "$runs/$name/trained" ]; then
    if [ -z "${DRY_RUN:-}" ]; then step=$(cat "$runs/$name/latest_checkpointed_iteration.txt"); fi
    if [ -z "${UNTRAINED:-}" ]; then
      policy=per_agent_lora
      lora=(--enable-lora --max-lora-rank 16 --lora-modules
        "orchestrator=$runs/$name/global_step_$step/actor/adapters/orchestrator")
    fi
  fi
  stage "evaluation of $name (log of the server: vllm.log)"
  serve vllm http://127.0.0.1:8200/health vllm serve "$MODEL" --served-model-name base --port 8200 \
    --generation-config vllm --data-parallel-size "$GPUS" --max-model-len 9216 "${lora[@]}"
  run python -m verl_ext.evaluate +recipe=puppeteer "${pool[@]}" evaluate.endpoint=http://127.0.0.1:8200/v1 \
    evaluate.model=base "evaluate.output=$output" evaluate.request_timeout=900 mas.limits.call_timeout=1700 \
    "mas.policy=$policy" "$@"
  if complete "$output/results.json"; then run touch "$output/finished"; fi
  stop_servers
  servers=()
}

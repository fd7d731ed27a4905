# Stages shared by the scripts of this folder, which source this file. Results that exist are not made again, so after a kill
# the same command continues. Hydra overrides may follow every script's name.
#
#   MODEL      hub name or folder; the paper's is meta-llama/Llama-3.1-8B-Instruct (gated: HF_TOKEN)
#   GPUS       of this machine; 8
#   TENSOR     GPUs that share one model in evaluation; 1 (72B: 8)
#   PASSAGES   jsonl of passages to search (pid, title, text), whose index will be the folder PASSAGES.index; DPR's
#              Wikipedia dump is downloaded if it is not given
#   RETRIEVAL  url of a running retrieval server; one is started, and stopped at the end, if it is not given
#   RETRIEVAL_DEVICE  where that server encodes queries; cuda:0, which takes about 2 GB of the first GPU; cpu is slower
#   DRY_RUN=1  prints every command that an empty clone needs, one per line, and runs none of them
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
: "${MODEL:=meta-llama/Llama-3.1-8B-Instruct}" "${GPUS:=8}" "${TENSOR:=1}" "${RETRIEVAL_DEVICE:=cuda:0}"
runs=runs/table1/$(basename "$MODEL")
data_sets=(hotpotqa 2wikimultihopqa musique)
refuse_overrides 'trainer.default_local_dir|actor_rollout_ref.model.path' "$@"
need python
need curl

# check OVERRIDES…: is a training's configuration right, and can this machine run it? Asked before hours are spent.
check() {
  stage "configuration"
  run python -m verl_ext.check --here "actor_rollout_ref.model.path=$MODEL" "trainer.n_gpus_per_node=$GPUS" "$@"
}

# check_evaluation OVERRIDES…: the same for a row without training.
check_evaluation() {
  stage "configuration"
  local command=(python -m verl_ext.evaluate --cfg job "$@")
  if [ -n "${DRY_RUN:-}" ]; then run "${command[@]}"; else "${command[@]}" >/dev/null; fi
  need vllm
}

questions() {
  stage "questions: minutes, 3 GB with the hub's cache"
  once data/hotpotqa/test.parquet python data_prep/qa.py hotpotqa --output_dir data/hotpotqa
  local name
  for name in "${data_sets[@]}"; do  # the whole validation splits, for evaluation
    once "data/table1/$name/corpus.jsonl" \
      python data_prep/qa.py "$name" --output_dir "data/table1/$name" --val_size 1000000 --max_samples 1
  done
}

# Sets `retrieval_url`.
retrieval() {
  retrieval_url=${RETRIEVAL:-http://127.0.0.1:8000}
  [ -z "${RETRIEVAL:-}" ] || return 0
  run python -c "import faiss, sentence_transformers" || {
    echo "error: dense retrieval lacks faiss or sentence_transformers; README.md's GPU installation has both" >&2
    exit 1
  }
  local dump=data/wikipedia/psgs_w100.tsv.gz passages=${PASSAGES:-data/wikipedia/passages.jsonl}
  local index=${PASSAGES:+$PASSAGES.index}
  : "${index:=data/wiki_index}"
  if [ -z "${PASSAGES:-}" ]; then
    stage "passages: 5 GB to download, 21 million passages, 15 GB unpacked"
    have "$dump" || download "$dump" https://dl.fbaipublicfiles.com/dpr/wikipedia_split/psgs_w100.tsv.gz
    once "$passages" python examples/table1/passages.py --input "$dump" --output "$passages"
  fi
  stage "index: hours, 150 GB of disk while it is built, 200 GB of memory for 21 million passages"
  once "$index/meta.json" python data_prep/corpus.py --input "$passages" --output_dir "$index" \
    --backend dense --model facebook/contriever --similarity dot --dense_index ivf --batch_size 512
  stage "retrieval server: minutes to read the index (log: retrieval.log)"
  serve retrieval "$retrieval_url/health" \
    python -m verl_ext.tools.retrieval_server --index "$index" --device "$RETRIEVAL_DEVICE" --port 8000 \
    --batched_encoding
}

# train NAME OVERRIDES…: trains, and leaves the last checkpoint as a Hugging Face folder in $runs/NAME/model.
train() {
  local name=$1 folder=$runs/$1 step=LAST
  shift
  if have "$folder/model"; then echo "   there already: $folder/model" >&2 && return; fi
  stage "training $name: 176 steps, goes on from its last checkpoint; 12 bytes a parameter and checkpoint, two are kept"
  if ! have "$folder/trained"; then
    run python -m verl.trainer.main_ppo "actor_rollout_ref.model.path=$MODEL" "trainer.n_gpus_per_node=$GPUS" \
      "trainer.experiment_name=$name" "trainer.default_local_dir=$folder" "$@"
    run touch "$folder/trained"
  fi
  if [ -z "${DRY_RUN:-}" ]; then step=$(cat "$folder/latest_checkpointed_iteration.txt"); fi
  run rm -rf "$folder/model.part"
  run python -m verl.model_merger merge --backend fsdp --local_dir "$folder/global_step_$step/actor" \
    --target_dir "$folder/model.part"
  run mv "$folder/model.part" "$folder/model"
  # verl keeps two, and those from before a restart.
  run find "$folder" -maxdepth 1 -name 'global_step_*' ! -name "global_step_$step" -exec rm -r '{}' +
}

# evaluate NAME MODEL OVERRIDES…: serves the model and answers the three validation splits with it. What failed is asked
# again by the same command.
evaluate() {
  local name=$1 model=$2 output=$runs/$1/eval files
  shift 2
  files=$(printf ',data/table1/%s/test.parquet' "${data_sets[@]}")
  if have "$output/finished"; then echo "   there already: $output" >&2 && return; fi
  stage "evaluation of $name: 22,398 questions (log of the server: vllm.log)"
  local names=(--served-model-name "$name")
  if [ -d "$model/lora_adapter" ]; then  # after +base=lora, verl's merger leaves base and adapter apart
    names=(--served-model-name base --enable-lora --max-lora-rank 64 --lora-modules "$name=$model/lora_adapter")
  fi
  # Sampling as in training's validation, not by the model's generation_config.json (Qwen2.5: repetition_penalty).
  serve vllm http://127.0.0.1:8100/health vllm serve "$model" "${names[@]}" --port 8100 --generation-config vllm \
    --tensor-parallel-size "$TENSOR" --data-parallel-size $((GPUS / TENSOR)) --max-model-len 8192
  run python -m verl_ext.evaluate evaluate.endpoint=http://127.0.0.1:8100/v1 "evaluate.model=$name" \
    "data.val_files=[${files:1}]" "evaluate.output=$output" evaluate.concurrency=256 "$@"
  if complete "$output/results.json"; then
    run touch "$output/finished"
  else
    echo "   some questions failed, see $output/report.md; the same command asks them again" >&2
  fi
}

# trained_row NAME OVERRIDES…: a row of the three agents, trained on HotpotQA with the retrieval server.
trained_row() {
  local name=$1
  shift
  check "$@"
  questions
  retrieval
  train "$name" "mas.tools.search.url=$retrieval_url" "$@"
  evaluate "$name" "$runs/$name/model" "mas.tools.search.url=$retrieval_url" "$@"
  table
}

table() {
  stage "Table 1"
  run python examples/table1/table.py "$runs"
}

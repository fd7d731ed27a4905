#!/usr/bin/env bash
# Table 5: single decisions on ToolBench-Static. Its rows Single-think-SFT and Single-nothink-SFT, or any model untrained.
#
#   STATIC=FOLDER DIALOGUES=toolllama_G123_dfs_train.json [THINK=0] examples/joyagents/table5.sh [overrides]
#   STATIC=FOLDER MODEL=Qwen/Qwen2.5-32B-Instruct examples/joyagents/table5.sh                       # untrained
#
#   STATIC     folder with in_domain.jsonl and out_of_domain.jsonl (data_prep/sources/toolbench_static.py says where from)
#   DIALOGUES  ToolBench's training dialogues; without them nothing is fine-tuned
#   THINK      0: without thoughts
#
# JoyAgents-R1's row takes a model trained by table2.sh: MODEL=runs/…/huggingface. Other settings: common.sh.
. "$(dirname "$0")/common.sh"
: "${STATIC:?error: STATIC is needed, the folder of ToolBench-Static}" "${THINK:=1}"
settings "$AGENTS"
stage "configuration"
run python -m verl_ext.evaluate --cfg job +recipe=joyagents_decisions "$@"
served=$MODEL name=decisions
if [ -n "${DIALOGUES:-}" ]; then
  chats=data/toolbench_sft options=()
  if [ "$THINK" = 0 ]; then chats=data/toolbench_sft_bare options=(--no_thoughts); fi
  name=$(basename "$chats")
  once "$chats/function_agent.parquet" python -m verl_ext.recipe.joyagents.data.toolbench_chats --input "$DIALOGUES" \
    --output_dir "$chats" "${options[@]}"
  fine_tune "$runs/$name" "$chats/function_agent.parquet" 10 +sft=joyagents data.val_files=null trainer.test_freq=-1
  served=$tuned
fi
stage "the model's server: minutes (log: agent.log)"
serve agent http://127.0.0.1:8200/health vllm serve "$served" --port 8200 --served-model-name agent --generation-config vllm \
  --tensor-parallel-size 4 --max-model-len 16384
for domain in in_domain out_of_domain; do
  steps=data/toolbench_$domain
  once "$steps/test.parquet" python data_prep/tools.py toolbench_static --sets "$domain" --output_dir "$steps" \
    --local_dataset_path "$STATIC"
  # The tools of a step are those of its row.
  run python -m verl_ext.evaluate +recipe=joyagents_decisions "data.val_files=$steps/test.parquet" +mas.workflow.offered=1 \
    "mas.tools.function_search.sources=[{kind: json, path: $steps/tools.jsonl}]" \
    evaluate.endpoint=http://127.0.0.1:8200/v1 evaluate.model=agent "evaluate.output=$runs/$name/$domain" "$@"
done

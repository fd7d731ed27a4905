#!/usr/bin/env bash
# Table 1, a row of a single agent (Template #6). The row of JoyAgents-R1 is M6 of table2.sh.
#
#   MODEL=Qwen/Qwen2.5-14B-Instruct examples/joyagents/table1.sh [overrides of the evaluation]
#
#   MODEL  the single agent; Qwen/Qwen2.5-7B-Instruct. Models behind other servers: docs/reproduce/joyagents.md
#   SFT=1  fine-tunes it first, for 10 epochs (the row Qwen2.5-7B; Section A.2)
#
# Other settings: common.sh.
: "${MODEL:=Qwen/Qwen2.5-7B-Instruct}"
. "$(dirname "$0")/common.sh"
settings "$AGENTS"
single=(+recipe=joyagents_single "data.val_files=$data/test.parquet" "mas.tools.knowledge.corpus=$data/knowledge.jsonl"
  "mas.tools.function_search.sources=[{kind: toolbench, path: $data/tools.jsonl}]"
  "mas.tools.function_call.backend.cache=$data/simulator.db" mas.tools.agent_search=null)
stage "configuration"
run python -m verl_ext.evaluate --cfg job "${single[@]}" "$@"
questions "$AGENTS"
served=$MODEL name=single
if [ -n "${SFT:-}" ]; then
  conversations "$sft" "$AGENTS"
  fine_tune "$runs/single_sft" "$sft/single_agent.parquet" 10 +sft=joyagents "data.val_files=$sft/val.parquet"
  served=$tuned name=single_sft
fi
simulator
stage "the agent's server: minutes (log: agent.log)"
serve agent http://127.0.0.1:8200/health env "CUDA_VISIBLE_DEVICES=$(seq -s, 0 3)" vllm serve "$served" --port 8200 \
  --served-model-name agent --generation-config vllm --tensor-parallel-size 4 --max-model-len 16384
output=$runs/$name/eval
if have "$output/finished"; then echo "   there already: $output" >&2 && exit; fi
run python -m verl_ext.evaluate "${single[@]}" evaluate.endpoint=http://127.0.0.1:8200/v1 evaluate.model=agent \
  "evaluate.output=$output" evaluate.request_timeout=600 mas.limits.call_timeout=1200 "$@"
if complete "$output/results.json"; then run touch "$output/finished"; fi

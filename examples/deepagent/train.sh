#!/usr/bin/env bash
# Trains a row of Table 3 or a curve of Figure 4: 8 machines of 8 GPUs, and one more that serves the auxiliary model and plays the
# tools: vllm serve Qwen/Qwen2.5-32B-Instruct --port 8100 --generation-config vllm -tp 4 -dp 2
#
#   examples/deepagent/train.sh NAME http://HOST:8100/v1 [overrides]      on the head node of the Ray cluster
#
# NAME is toolpo, grpo (Figure 4), no_folding or no_tool_advantage. Training is on ToolBench alone (TOOLBENCH: its folder `data`,
# unpacked), or with MIXTURE=FOLDER on the paper's six data sets (train.parquet, test.parquet of data_prep/mix.py).
name=${1:?error: give a name: toolpo, grpo, no_folding or no_tool_advantage}
auxiliary=${2:?error: give the auxiliary model\'s address, for example http://10.0.0.9:8100/v1}
shift 2
. "$(dirname "$0")/common.sh"
case $name in
  toolpo) method=() ;;
  grpo) method=(+base=grpo) ;;
  no_folding) method=(mas.workflow.max_folds=0) ;;
  no_tool_advantage) method=(mas.advantage.tool_advantage=false) ;;
  *) echo "error: there is no $name; there are toolpo, grpo, no_folding, no_tool_advantage" >&2; exit 2 ;;
esac
folder=$runs/training/$name step=BEST
if have "$folder/model"; then echo "   there already: $folder/model" >&2 && exit; fi
if [ -n "${MIXTURE:-}" ]; then
  data=(+recipe=deepagent_mixture "data.train_files=$MIXTURE/train.parquet" "data.val_files=$MIXTURE/test.parquet")
else
  given TOOLBENCH "ToolBench's folder \`data\`, unpacked"
  stage "questions: minutes"
  once data/toolbench_train/train.parquet python data_prep/tools.py toolbench --test_size 100 \
    --output_dir data/toolbench_train --local_dataset_path "$TOOLBENCH/instruction"
  data=(+recipe=deepagent data.train_files=data/toolbench_train/train.parquet
    data.val_files=data/toolbench_train/test.parquet
    "mas.tools.tool_search.sources=[{kind: toolbench, path: data/toolbench_train/tools.jsonl}]")
fi
stage "training $name: 100 steps, goes on from its last checkpoint"
# The best checkpoint by validation is kept in best/.
run python -m verl.trainer.main_ppo "${data[@]}" "${method[@]}" "actor_rollout_ref.model.path=$MODEL" \
  "mas.agents.auxiliary.endpoint.url=$auxiliary" "mas.tools.tool_call.backend.endpoint=$auxiliary" \
  trainer.keep_best=val/system/success "trainer.experiment_name=$name" "trainer.default_local_dir=$folder" "$@"
if [ -z "${DRY_RUN:-}" ]; then step=$(basename "$folder"/best/global_step_* | sed 's/.*_//'); fi
run rm -rf "$folder/model.part"
run python -m verl.model_merger merge --backend fsdp --local_dir "$folder/best/global_step_$step/actor" \
  --target_dir "$folder/model.part"
run mv "$folder/model.part" "$folder/model"

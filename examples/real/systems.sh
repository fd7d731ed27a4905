#!/usr/bin/env bash
# Every system and its baselines with a small real model on real questions, on a CPU: an evaluation each, then one table.
#
#   N=5 examples/real/systems.sh                 a quick look
#   COLD=1 N=5 examples/real/systems.sh smurfs   after a cold start on demonstrations by rule from the benchmarks' gold
#
#   (arguments)  systems, by name, all of them without any; and Hydra overrides of every evaluation
#   N            questions of each, always the same ones; 50
#   MODEL        a folder; models/smollm2, which `verl_ext models smollm2-135m` writes
#   RUNS         folder of the results; runs/real/<name of the model>, runs/real/cold_start
#   HOTPOTQA, CORPUS, API_BANK, GSM8K, RESTBENCH
#                local files of the data sets, in place of the hub
#
# Systems that have been evaluated are not asked again; a larger N asks the further questions alone.
#
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../shared.sh"
export VERL_PLATFORM=cpu
: "${N:=50}" "${MODEL:=models/smollm2}" "${RUNS:=runs/real/${COLD:+cold_start}}"
if [ -z "${COLD:-}" ]; then RUNS=${RUNS%/}/$(basename "$MODEL"); fi
wanted=() more=()
for argument in "$@"; do if [[ $argument == *=* ]]; then more+=("$argument"); else wanted+=("$argument"); fi; done
systems=(mhgpo single smurfs react dfsdt plan_and_solve reflexion self_refine debate rewoo codeact deepagent decisions joyagents
  puppeteer cot)
if [ ${#wanted[@]} = 0 ]; then wanted=("${systems[@]}"); fi
# Lengths for a model of 8,192 positions, and for hours, not days, on two cores.
small=(evaluate.device=cpu evaluate.concurrency=4 evaluate.temperature=0 evaluate.top_p=1 evaluate.top_k=-1
  actor_rollout_ref.rollout.dtype=auto data.max_prompt_length=4096 data.max_response_length=1024)
hotpotqa=data/hotpotqa_real
recorded=(+base=api_bank mas.tools.tool_call.backend=null)  # API-Bank's recorded results alone; no model plays its tools

data_of() {
  case $1 in
    mhgpo | single)
      once $hotpotqa/test.parquet python -m verl_ext.data_prep.qa hotpotqa --output_dir $hotpotqa --split all --val_size 128 \
        --max_samples 433 ${HOTPOTQA:+--local_dataset_path "$HOTPOTQA"}
      once $hotpotqa/index python -m verl_ext.data_prep.corpus --input "${CORPUS:-$hotpotqa/corpus.jsonl}" \
        --output_dir $hotpotqa/index ;;
    smurfs | react | dfsdt | plan_and_solve | reflexion | self_refine | debate | rewoo | codeact | deepagent)
      once data/api_bank/test.parquet python -m verl_ext.data_prep.tools api_bank --output_dir data/api_bank --test_size 120 \
        ${API_BANK:+--local_dataset_path "$API_BANK"} ;;
    decisions)
      once data/api_bank_turns/test.parquet python -m verl_ext.data_prep.tools api_bank --unit turn --test_size 100 \
        --output_dir data/api_bank_turns ${API_BANK:+--local_dataset_path "$API_BANK"} ;;
    joyagents)
      once data/joyagents_math/test.parquet python -m verl_ext.recipe.joyagents.data.rl_questions \
        --output_dir data/joyagents_math --specialists math_agent ${GSM8K:+--gsm8k "$GSM8K"} ;;
    puppeteer | cot)
      once data/gsm8k/test.parquet python -m verl_ext.data_prep.reasoning gsm8k ${GSM8K:+--local_dataset_path "$GSM8K"} ;;
  esac
}

# baseline CLASS BUDGET AGENTS…: sets `overrides`; the agents are those beside the one that acts.
baseline() {
  local agent
  overrides=(+recipe=baseline "${recorded[@]}" "mas.workflow._target_=verl_ext.recipe.baselines.$1" "mas.workflow.budget=$2")
  overrides+=(mas.agents.agent.max_tokens=96)
  for agent in "${@:3}"; do overrides+=("+mas.agents.$agent.max_tokens=128"); done
}

# overrides_of NAME: sets `overrides`.
overrides_of() {
  case $1 in
    mhgpo) overrides=(+recipe=mhgpo_real) ;;
    single) overrides=(+recipe=mhgpo_real +base=single) ;;
    smurfs)
      overrides=(+recipe=smurfs "${recorded[@]}" mas.workflow.max_tasks=3 mas.workflow.max_calls=2
        mas.agents.planner.max_tokens=192 mas.agents.arguments.max_tokens=128 mas.agents.action.max_tokens=64)
      for agent in thought tool_check answer verifier final; do overrides+=("mas.agents.$agent.max_tokens=96"); done ;;
    react) overrides=(+recipe=smurfs_react "${recorded[@]}" mas.workflow.budget=4 mas.agents.agent.max_tokens=96) ;;
    dfsdt) overrides=(+recipe=smurfs_dfsdt "${recorded[@]}" mas.workflow.budget=4 mas.agents.agent.max_tokens=96) ;;
    plan_and_solve) baseline PlanAndSolve 4 planner ;;
    reflexion) baseline Reflexion 4 evaluator reflector ;;
    self_refine) baseline SelfRefine 4 critic refiner ;;
    debate) baseline Debate 12 debater ;;  # four calls for each of three debaters
    rewoo) baseline ReWOO 4 planner ;;
    codeact) baseline CodeAct 8 ;;  # programs count, too
    deepagent)
      overrides=(+recipe=deepagent_api_bank mas.tools.tool_call.backend=null mas.tools.tool_search.method=bm25
        mas.tools.tool_search.dense=null mas.tools.tool_search.top_k=3 mas.agents.auxiliary.endpoint=null
        mas.workflow.summarise=false mas.workflow.max_actions=6 mas.workflow.max_folds=0 mas.agents.agent.max_tokens=128
        mas.workflow.max_result_chars=800 mas.workflow.max_document_chars=2400 data.max_response_length=2048) ;;
    decisions) overrides=(+recipe=joyagents_decisions +mas.workflow.offered=3 +mas.agents.function_agent.max_tokens=128) ;;
    joyagents)
      overrides=(+recipe=joyagents data.val_files=data/joyagents_math/test.parquet 'mas.workflow.specialists=[math_agent]'
        mas.workflow.encoder=hashing mas.memory.encoder=hashing mas.workflow.max_rounds=3 mas.workflow.specialist_rounds=2
        mas.agents.master.max_tokens=128 mas.agents.math_agent.max_tokens=192)
      for tool in shop_search shop_call function_search function_call knowledge; do overrides+=("mas.tools.$tool=null"); done
      for agent in question_agent shop_agent function_agent summary intention; do overrides+=("mas.agents.$agent=null"); done ;;
    puppeteer)
      overrides=(+recipe=puppeteer data.val_files=data/gsm8k/test.parquet mas.workflow.width=1 data.max_response_length=128
        'mas.workflow.pool=[planning,reasoning,critique,conclude,run_python]') ;;
    cot)
      overrides=(+recipe=baseline data.val_files=data/gsm8k/test.parquet mas.workflow.success=answer
        mas.workflow._target_=verl_ext.recipe.baselines.CoT mas.agents.agent.max_tokens=192)
      for tool in tool_search tool_call run_python; do overrides+=("mas.tools.$tool=null"); done ;;
    *) echo "error: there is no system $1; there are ${systems[*]}" >&2 && exit 2 ;;
  esac
}

# start_of NAME: sets `model` to its cold start, which is made if it is not there.
start_of() {
  local name=$1
  local module=$name.cold_start.gold rule=(--questions data/api_bank/train.parquet --tools data/api_bank) size=16
  case $name in
    smurfs) ;;
    deepagent) size=4 ;;  # its conversations are long, as are those of the others below
    react | dfsdt | plan_and_solve | reflexion | self_refine | debate | rewoo | codeact)
      module=baselines.cold_start.acting rule+=(--system "$name") size=2
      case $name in debate) rule+=(--budget 12) ;; codeact) rule+=(--budget 8) ;; esac ;;
    decisions)
      module=joyagents.cold_start.gold size=4
      rule=(--questions data/api_bank_turns/train.parquet --tools data/api_bank_turns --max_chars 6000) ;;
    single)
      module=mhgpo.cold_start.single size=2
      rule=(--questions "$hotpotqa/train.parquet" --index "$hotpotqa/index" --max_chars 3000) ;;
    joyagents)
      module=joyagents.cold_start.word_problems size=4
      rule=(--questions data/joyagents_math/train.parquet ${GSM8K:+--gsm8k "$GSM8K"}) ;;
    puppeteer | cot)
      if [ "$name" = cot ]; then module=baselines.cold_start.cot size=4; fi
      rule=(--questions data/gsm8k/train.parquet ${GSM8K:+--gsm8k "$GSM8K"}) ;;
    mhgpo)
      model=runs/mhgpo_real_cold_start/global_step_36/huggingface
      once $hotpotqa/cold_start/demonstrations.parquet python -m verl_ext.recipe.mhgpo.cold_start.questions \
        --questions $hotpotqa/train.parquet --index $hotpotqa/index --output_dir $hotpotqa/cold_start
      once "$model/config.json" python -m verl_ext.sft +sft=mhgpo_real "model.path=$MODEL"
      return ;;
  esac
  model=runs/${name}_cold_start/global_step_24/huggingface
  once "data/cold_start/$name.parquet" python -m "verl_ext.recipe.$module" "${rule[@]}" \
    --output "data/cold_start/$name.parquet"
  once "$model/config.json" python -m verl_ext.sft +sft=gold "system=$name" "model.path=$MODEL" \
    "data.train_batch_size=$size"
}

failed=()
for name in "${wanted[@]}"; do
  stage "$name"
  data_of "$name"
  overrides_of "$name"
  model=$MODEL
  if [ -n "${COLD:-}" ]; then start_of "$name"; fi
  run python -m verl_ext.evaluate "evaluate.model=$model" "evaluate.output=$RUNS/$name" "evaluate.max_questions=$N" "${small[@]}" \
    "${overrides[@]}" "${more[@]}" || failed+=("$name")  # the others go on
done
run python examples/real/table.py runs/real/*
if [ ${#failed[@]} != 0 ]; then echo "error: not evaluated: ${failed[*]}" >&2 && exit 1; fi

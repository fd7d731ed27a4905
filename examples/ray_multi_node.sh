#!/usr/bin/env bash
# MHGPO on several machines of 8 GPUs: Ray's cluster, as verl has it. The same recipe, three numbers changed.
#
#   on the head node:      ray start --head --port=6379
#   on every other node:   ray start --address=HEAD:6379
#   on the head node:      examples/ray_multi_node.sh NODES http://RETRIEVAL_HOST:8000 [overrides]
#
# Run `ray start` in this repository's folder and in its environment on every node: Ray's workers keep the folder, and
# the recipe's paths (data/, runs/) are relative to it. Code, data and model must be at the same paths on every node (a
# shared file system), and the retrieval server (--host 0.0.0.0) reachable from all of them: the rollout workers run
# everywhere. Settings, DRY_RUN among them: table1/common.sh.
. "$(dirname "$0")/table1/common.sh"
nodes=${1:?number of nodes}
retrieval_url=${2:?url of the retrieval server}
shift 2
overrides=(+recipe=mhgpo "trainer.nnodes=$nodes" "mas.tools.search.url=$retrieval_url"
  "actor_rollout_ref.rollout.agent.num_workers=$((8 * nodes))" "$@")
export RAY_ADDRESS=auto
check "${overrides[@]}"
questions
train "mhgpo_${nodes}_nodes" "${overrides[@]}"

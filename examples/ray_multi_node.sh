#!/usr/bin/env bash
# MHGPO on several machines of 8 GPUs, in a Ray cluster, as in verl. The recipe is the same; three numbers change.
#
#   on the head node:      ray start --head --port=6379
#   on every other node:   ray start --address=HEAD:6379
#   on the head node:      examples/ray_multi_node.sh NODES http://RETRIEVAL_HOST:8000 [overrides]
#
# On every node, run `ray start` in this repository's folder and environment: Ray's workers keep that folder, and the
# recipe's paths (data/, runs/) are relative to it. Code and model must have the same paths on every node; checkpoints go to
# a shared folder. All nodes must reach the retrieval server (--host 0.0.0.0), because rollout workers run on all of them.
# table1/common.sh describes the settings, DRY_RUN among them.
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

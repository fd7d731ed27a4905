"""Replicas of several policies (`mas.policies`) on ranks of their own, each named by its policy."""

from __future__ import annotations

from verl.workers.rollout.replica import RolloutReplica

from verl_ext.engine.policy_names import policy_of
from verl_ext.engine.replaced import replaced


class PolicyReplica(RolloutReplica):
    """verl's replica. It names the actors of standalone ranks by the rank of the replica alone."""

    @property
    def policy(self) -> str:
        """The policy that it serves; "" in a run with one, and for reward models and teachers."""
        return "" if self.is_reward_model or self.is_teacher_model else policy_of(self.config)

    async def init_standalone(self) -> None:
        """As verl's method, with the policy in the names of the ranks. Those of servers have it in any case."""
        with replaced(self, name_suffix=f"_{self.policy}" if self.policy else self.name_suffix):
            await super().init_standalone()

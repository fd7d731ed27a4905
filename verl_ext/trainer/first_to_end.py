"""`mas.sampling.oversample`: a synchronous step trains on the questions that end first, and cuts the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.utils.tensordict_utils import assign_non_tensor_data, concat_tensordict

if TYPE_CHECKING:  # the trainer of verl that `FirstToEnd` goes in front of
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync as Trainer

    from verl_ext.trainer.config import MasConfig
    from verl_ext.trainer.rollout.agent_loop import MultiAgentLoopManager
    from verl_ext.trainer.state.run_state import RunState
else:
    Trainer = object


class FirstToEnd(Trainer):
    """What the synchronous trainer adds to verl's. Where `mas.sampling.oversample` is 1, that is nothing."""

    agent_loop_manager: MultiAgentLoopManager
    mas: MasConfig
    state: RunState

    def _init_dataloader(self) -> None:
        """Let the data set give one question at a time."""
        if self.mas.sampling.oversample > 1:
            with open_dict(self.config):
                self.config.data.gen_batch_size = 1
        super()._init_dataloader()

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        if not self.state.oversampling.on:
            return super()._next_train_batch(num_prompts)
        batch = concat_tensordict(self.state.oversampling.begin(self._next_question))
        assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _next_question(self) -> tuple[TensorDict, bool]:
        """A question of the data set, and whether it is the first one of a further epoch."""
        if self.train_dataloader_it is None:
            self.train_dataloader_it = iter(self.train_dataloader)
        before = self.train_dataloader_it
        question = self._fetch_one_gen_batch()
        return question, self.train_dataloader_it is not before

    def on_sample_end(self) -> None:
        """Cut the questions of the step that verl has not taken, then let the engine sleep."""
        if self.state.oversampling.on:
            self._cut()
        super().on_sample_end()

    def _cut(self) -> None:
        late = self.state.oversampling.late(tq.kv_list("train").get("train", {}).keys())
        self.state.oversampling.put_back(late, self.agent_loop_manager.cut(late))
        if late:
            # A request that the agents have given up may still be about to end, and the engine must not sleep then.
            self.checkpoint_manager.abort_replicas()
            self.checkpoint_manager.resume_generation_replicas()

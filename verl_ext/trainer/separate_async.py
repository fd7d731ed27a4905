"""`trainer_mode=mas_separate_async`: rollouts go on beside the training, on ranks of their own."""

from __future__ import annotations

from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from verl_ext.engine.replaced import replaced
from verl_ext.trainer import modes
from verl_ext.trainer.trainer import MultiAgentTrainer, reads


@register_trainer(modes.SEPARATE)
class MultiAgentTrainerSeparateAsync(MultiAgentTrainer, PPOTrainerSeparateAsync):
    """Rollouts never wait for the training; rows carry the versions of the weights that they span."""

    trainer_mode = reads("separate_async")

    def __init__(self, config: DictConfig):
        # verl asks for one optimiser step per part of a step, and reads no more than that from these settings here.
        actor, parts = config.actor_rollout_ref.actor, modes.parts_of_step(config)
        mini = actor.ppo_mini_batch_size
        with open_dict(config):
            actor.ppo_mini_batch_size = config.data.train_batch_size // parts
            try:
                super().__init__(config)
            finally:
                actor.ppo_mini_batch_size = mini

    def _setup(self) -> None:
        # Without replicas on the trainer's ranks verl logs a line with an argument that logging does not take.
        with replaced(trainer_separate_async.logger, disabled=True):
            super()._setup()

    def on_step_end(self) -> None:
        """Pause the time limits of calls while the engine gets new weights."""
        self.agent_loop_manager.pause()
        super().on_step_end()
        self.agent_loop_manager.resume()

"""Supervised fine-tuning by verl's own SFTTrainer, on the CPU or under torchrun on GPUs: the cold start before RL.

    python -m verl_ext.sft +sft=joyagents_tiny model.path=runs/joyagents/start
    torchrun --nproc-per-node 8 -m verl_ext.sft +sft=joyagents model.path=Qwen/Qwen2.5-3B-Instruct
    torchrun --nproc-per-node 8 -m verl_ext.sft +sft=joyagents_agent agent=math_agent     # a LoRA adapter for one agent

The configuration is verl's (sft_trainer_engine.yaml) with ours (configs/sft) over it; any key can be overridden. The
same command again goes on from the last checkpoint; logs of earlier parts are then sft.1.jsonl, sft.2.jsonl, … A
complete training stays as it is. It ends with a Hugging Face folder, from which RL starts; with `model.lora.adapters`
with the peft folder of that adapter, from which RL starts by `mas.policy_init`.

Why not `torchrun -m verl.trainer.sft_trainer`: it asks torch for a group "cpu:gloo,cpu:gloo" on the CPU, which torch
refuses (verl/utils/distributed.py), and some settings make it end without having saved anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import call
from omegaconf import DictConfig, OmegaConf

import verl_ext.plugin  # noqa: F401  (configs/ on Hydra's search path, as `import verl` does it)
from verl_ext.observe.runlog import TRACKER
from verl_ext.observe.sft_log import LOG, StepLines, losses_of, set_aside
from verl_ext.recipe_list import find_recipes

VENDOR = "verl_ext"  # of our engines (verl_ext/engine/lora/adapters.py)
HF_MODEL = "hf_model"  # of checkpoint.save_contents: the folder that RL starts from
VERLS_MODEL = "~/models/deepseek-llm-7b-chat"  # verl's default of model.path
# Steps at the beginning and at the end whose mean loss is reported.
ENDS = 10


@hydra.main(config_path="pkg://verl.trainer.config", config_name="sft_trainer_engine", version_base=None)
def main(config: DictConfig) -> None:
    """Command line."""
    _stand_alone()
    silence_libraries()
    with _reasons_in_words():
        if config.trainer.device == "cpu":
            from verl_ext.trainer.run_callback import choose_cpu_platform

            choose_cpu_platform()
        check_settings(config)
    if adapter_of(config):
        os.environ["VERL_ENGINE_VENDOR"] = VENDOR  # on CUDA, verl's own engine would write no peft folder
    # One group for all: a second one would find the first one's addresses in torchrun's store, and hang.
    with _process_group(config):
        with _reasons_in_words():
            steps = prepare(config)
        if finished(config, steps):  # verl would make a step more
            print(f"This training is complete already, in {config.trainer.default_local_dir}.", flush=True)
        else:
            train(config, steps)
    if _rank() == 0:
        print(report(config, steps, HydraConfig.get().runtime.choices.get("sft")), flush=True)


def prepare(config: DictConfig) -> int:
    """Make the data if `prepare` says how, look at them, choose the float type if it is `auto`. A collective of all.

    Returns: optimiser steps of the whole training.

    Raises:
        ValueError: what is wrong, what was given, what is allowed, the remedy.
    """
    import torch.distributed as dist

    from verl_ext.engine import precision

    if config.get("prepare") and _rank() == 0:
        call(OmegaConf.to_container(config.prepare, resolve=True))
    dist.barrier()
    name = "engine.mixed_precision.param_dtype"
    chosen = precision.settle(config, [name], lambda: precision.choose_together(config.trainer.device))
    if chosen and _rank() == 0:
        print(f"Float type {chosen}", flush=True)
    return check_data(config)


def check_settings(config: DictConfig) -> None:
    """What can be said without looking at any file.

    Raises:
        ValueError: a setting with which verl's trainer would fail late, or end without a model.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    adapter_of(config)
    if not adapter_of(config) and config.model.lora_rank > 0:
        raise ValueError(
            f"model.lora_rank={config.model.lora_rank} without a name for the adapter: RL could not start from it. "
            "Remedy: model.lora.adapters=[AGENT]"
        )
    if not adapter_of(config) and HF_MODEL not in config.checkpoint.save_contents:
        raise ValueError(
            f"checkpoint.save_contents={list(config.checkpoint.save_contents)} has no {HF_MODEL!r}: no folder would be "
            f"written that RL can start from. Remedy: checkpoint.save_contents=[model,optimizer,extra,{HF_MODEL}]"
        )
    if config.data.enable_thinking_default is not None and not isinstance(config.data.enable_thinking_default, bool):
        raise ValueError(
            f"data.enable_thinking_default={config.data.enable_thinking_default!r} is a text, which verl takes for "
            "true; allowed: null, true, false. Remedy: data.enable_thinking_default=null"
        )
    if config.data.train_batch_size < 1 or config.data.train_batch_size % world:
        raise ValueError(
            f"data.train_batch_size={config.data.train_batch_size} must be a multiple of the {world} processes"
        )
    if config.trainer.test_freq not in (-1, 0) and not config.data.val_files:
        raise ValueError(
            f"trainer.test_freq={config.trainer.test_freq} needs data.val_files. Remedy: trainer.test_freq=-1"
        )
    path = str(config.model.path)
    if path.startswith((".", "/", "~", "runs/", "data/", "models/")) and not Path(path).is_dir():
        default = " (verl's default: it is not set)" if path == VERLS_MODEL else ""
        raise ValueError(
            f"model.path={path} does not exist{default}. Remedy: model.path=…, a Hugging Face folder (~ is not "
            "expanded), or a name of the hub"
        )


def adapter_of(config: DictConfig) -> str:
    """The adapter that is trained (`model.lora.adapters`); "" if whole weights are.

    Raises:
        ValueError: several, or settings that adapters do not go with.
    """
    from verl_ext.engine.lora import adapters

    options = adapters.AdapterOptions.from_config(config.model)
    if options is None:
        return ""
    if len(options.names) > 1:
        raise ValueError(
            f"model.lora.adapters={list(options.names)}: fine-tuning trains one adapter. Remedy: a run for each agent"
        )
    engine = config.engine
    precision = OmegaConf.select(engine, "mixed_precision.param_dtype") or "bf16"
    parallel, contents = engine.ulysses_sequence_parallel_size, config.checkpoint.save_contents
    adapters.check_settings("engine.", engine.strategy, parallel, precision, False, contents)
    return options.names[0]


def check_data(config: DictConfig) -> int:
    """Look at the data files; returns the optimiser steps of the whole training.

    Raises:
        ValueError: a file is missing or has no conversations, or there are too few for a step, or for all steps.
    """
    data, batch = config.data, config.data.train_batch_size
    rows = _conversations(data.train_files, data.messages_key)
    if data.val_files and (held := _conversations(data.val_files, data.messages_key)) < batch:
        raise ValueError(
            f"data.val_files have {held} conversations, fewer than data.train_batch_size={batch}, in which they are "
            "read. Remedy: more of them, or data.val_files=null"
        )
    limit = data.get("train_max_samples", -1)
    rows = min(rows, limit) if limit > 0 else rows
    per_epoch = rows // batch
    available = per_epoch * config.trainer.total_epochs
    if not per_epoch:
        raise ValueError(f"data.train_files have {rows} conversations, fewer than data.train_batch_size={batch}")
    wanted = config.trainer.total_training_steps or available
    if wanted > available:
        raise ValueError(
            f"trainer.total_training_steps={wanted}, but {config.trainer.total_epochs} epoch(s) of {rows} "
            f"conversations have {available} steps: verl would end without saving. Remedy: trainer.total_epochs="
            f"{-(-wanted // per_epoch)}, or fewer steps"
        )
    return wanted


def finished(config: DictConfig, steps: int) -> bool:
    """Whether the checkpoint of the last of so many steps is there, and the training would go on from it."""
    folder = Path(config.trainer.default_local_dir)
    if config.trainer.resume_mode != "auto" or not (folder / f"global_step_{steps}").is_dir():
        return False
    return _last(folder) >= steps


def _last(folder: Path) -> int:
    """The step of the last checkpoint; 0: there is none."""
    tracker = folder / TRACKER
    return int(last) if tracker.is_file() and (last := tracker.read_text().strip()).isdigit() else 0


def train(config: DictConfig, steps: int) -> None:
    """verl's SFTTrainer, from the last checkpoint of its folder if there is one. A collective of all ranks.

    steps: of the whole training.
    """
    folder = Path(config.trainer.default_local_dir)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / LOG)
    from verl.trainer import sft_trainer
    from verl.utils.checkpoint import checkpoint_handler, checkpoint_manager

    if _rank() == 0:
        set_aside(folder / LOG)
        done = _last(folder) if config.trainer.resume_mode == "auto" else 0
        so_far = f", from its checkpoint of step {done}" if done else ""
        print(f"Fine-tuning {config.model.path} in {folder}: {steps} steps{so_far} …", flush=True)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # verl prints its configuration
        trainer = sft_trainer.SFTTrainer(config)
    for module in (sft_trainer, checkpoint_handler, checkpoint_manager):
        vars(module)["print"] = lambda *args, **kwargs: None  # each file that is saved
    vars(sft_trainer)["tqdm"] = StepLines(folder / LOG, steps)
    trainer.fit()


def silence_libraries() -> None:
    """Hide what libraries print at every start or checkpoint and nobody has to act on."""
    warnings.filterwarnings("ignore", message=".* engine is not available")  # verl's others than FSDP
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # a line per file of a checkpoint
    for name in ("verl.plugin.platform.platform_manager", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # verl's checkpoints give the float type by its old name.
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: "torch_dtype" not in record.getMessage())
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def report(config: DictConfig, steps: int, recipe: str | None) -> str:
    """What came of it and what to do next, in words."""
    folder = Path(config.trainer.default_local_dir)
    losses, held = losses_of(folder / LOG)
    adapter, last = adapter_of(config), folder / f"global_step_{steps}"
    model = last / "adapters" / adapter if adapter else last / "huggingface"
    start = f"mas.policy=per_agent_lora +mas.policy_init.{adapter}=" if adapter else "actor_rollout_ref.model.path="
    lines = ["", "Done."]
    if losses:
        begin, end = fmean(losses[:ENDS]), fmean(losses[-ENDS:])
        lines.append(f"  loss         {begin:.3f} → {end:.3f} in {len(losses)} steps")
    if held:
        lines.append(f"  held out     {' → '.join(f'{loss:.3f}' for loss in held)}")
    lines += [f"  log          {folder / LOG}", f"  model        {model}", "", "Reinforcement learning from it:"]
    recipes, suited = find_recipes(), [f"{recipe}_gpu"] if config.trainer.device != "cpu" else []
    # Some cold starts are of no recipe, or of several.
    named = next((name for name in [*suited, recipe] if name in recipes), "RECIPE")
    lines.append(f"  python -m verl.trainer.main_ppo +recipe={named} {start}{model}")
    return "\n".join(lines)


@contextlib.contextmanager
def _reasons_in_words() -> Iterator[None]:
    """End with the reason alone where a setting or a file is wrong."""
    try:
        yield
    except (ValueError, FileNotFoundError, ModuleNotFoundError) as error:
        print(f"\nThis training cannot start.\n{error}\n", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


@contextlib.contextmanager
def _process_group(config: DictConfig) -> Iterator[None]:
    """The ranks' process group, of torch over gloo on the CPU and of verl elsewhere."""
    import torch.distributed as dist
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    if config.trainer.device == "cpu":
        dist.init_process_group("gloo")
    else:
        initialize_global_process_group()
    try:
        yield
    finally:
        destroy_global_process_group()


def _stand_alone() -> None:
    """Without torchrun: one process, its own master."""
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _conversations(files: Any, column: str) -> int:
    """Rows of a file, or of several."""
    return sum(_rows(Path(file), column) for file in ([files] if isinstance(files, str) else files))


def _rows(file: Path, column: str) -> int:
    """Rows of a file.

    Raises:
        ValueError: it is not there, or has no such column, or its first row ends with somebody else than the agent.
    """
    import pyarrow.parquet as pq

    if not file.is_file():
        raise ValueError(f"the data file {file} does not exist")
    try:
        table = pq.ParquetFile(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as parquet ({error}). Remedy: write it again") from None
    if column not in table.schema_arrow.names:
        raise ValueError(
            f"{file} has the columns {table.schema_arrow.names}, but no {column!r} (data.messages_key): a list of "
            '{"role", "content"} per row'
        )
    batch = next(table.iter_batches(batch_size=1, columns=[column]), None)
    first = batch.to_pylist()[0][column] if batch is not None and batch.num_rows else []
    last = first[-1] if isinstance(first, list) and first else None
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise ValueError(
            f"{file}: a conversation must end with what the assistant says; the first row is {first!r:.300}"
        )
    return table.metadata.num_rows


if __name__ == "__main__":
    main()

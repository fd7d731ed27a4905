"""Make a tiny model: a Qwen2 of 0.8 million parameters with its own tokenizer, trained on noisy demonstrations.

    python -m verl_ext.recipe.cold_start.train --world search --output_dir runs/tiny_model

Tiny models show multi-agent RL on a laptop in minutes: a checkpoint can do its agents' work in worlds that it has never
seen, but has bad habits (recipe/*/cold_start/demonstrations.py), so that greedy decoding fails on most questions; RL
corrects the habits. The committed checkpoints, recipe/*/assets/tiny_model, were made with these options:

    --world search                                                                           mhgpo
    --world arithmetic --steps 1200 --habit_steps 500 --habit_lr 1e-3                        solver_verifier
    --world tools --steps 1600 --habit_steps 500 --habit_lr 1.5e-3 --batch_size 20           deepagent
    --world pool --steps 1200 --habit_steps 400 --batch_size 20                              puppeteer
    --world smurfs --steps 1200 --habit_steps 300 --batch_size 16                            smurfs
    --world shop --steps 1600 --habit_steps 0, then verl's SFTTrainer (examples/joyagents)   joyagents

Not committed: --world search --layers 2 --width 64, a sixth of the parameters, for configs/compare/policy_sizes.yaml.

Stages: tokenizer (seconds), right demonstrations (skills), demonstrations with habits (minutes each on one core),
evaluation on held-out questions after each. To try other habits, run the second stage alone: the command with
--habit_steps 0 into a folder, then with --start FOLDER --steps 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from verl_ext.arguments import Parser, exit_status
from verl_ext.recipe.cold_start.evaluate import run_workflow, summary
from verl_ext.recipe.cold_start.registry import COLD_STARTS
from verl_ext.recipe.cold_start.teacher import END, Example

PAD, ROLES = "<|pad|>", ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
# The space after a role's token makes the first word of a message the same token as anywhere else.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# For outputs that begin with a mark, without a space: a server that continues one (vLLM) lets the template write it.
STREAM_TEMPLATE = CHAT_TEMPLATE.replace("'|> ' +", "('|>' if message['role'] == 'assistant' else '|> ') +")
MAX_LENGTH = 4096  # positions of the model; the tiny worlds need about 150, real passages some thousands


def build_tokenizer(words: list[str], marks: Sequence[str] = (), template: str = CHAT_TEMPLATE) -> Qwen2Tokenizer:
    """Byte-level BPE in which each of `words`, with the space before it, is one token; other text is bytes.

    Each of `marks` is one token wherever it occurs.

    Qwen2's own class (its pre-tokenizer, NFC, no space added), because AutoTokenizer loads any tokenizer beside a Qwen2
    model as that class: a different pre-tokenizer would be lost silently.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    special = [PAD, END, *ROLES]
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # never reached: merging ends when every word is one token
        min_frequency=1,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bare = [word for word in words if word == "###"]  # also at the beginning of an output
    trained.train_from_iterator([*(f" {word}" for word in words if not word.isdigit()), *bare], trainer)
    content = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=content["vocab"],
        merges=[tuple(pair) for pair in content["merges"]],
        unk_token=None,
        pad_token=PAD,
        eos_token=END,
        chat_template=template,
        model_max_length=MAX_LENGTH,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    # Qwen2's pre-tokenizer splits numbers into digits; the tiny model learns to add far sooner with whole numbers.
    tokenizer.add_tokens([AddedToken(f" {word}", normalized=False) for word in words if word.isdigit()])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return tokenizer


def tokenizer_of(world: str) -> Qwen2Tokenizer:
    """The tokenizer of a world's tiny model."""
    start = COLD_STARTS[world]
    return build_tokenizer(start.words(), start.marks(), STREAM_TEMPLATE if start.streams else CHAT_TEMPLATE)


def build_model(tokenizer: Any, seed: int, layers: int = 4, width: int = 128) -> Qwen2ForCausalLM:
    """The untrained model: heads of 32, an MLP twice as wide, tied embeddings, float32. `width`: a multiple of 32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def load_model(folder: str, tokenizer: Any) -> Qwen2ForCausalLM:
    """The model of an earlier run. Raises ValueError if its tokens are not those of this world."""
    if AutoTokenizer.from_pretrained(folder).get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"--start {folder}: its tokens are not this world's. Remedy: train it again with this script")
    return Qwen2ForCausalLM.from_pretrained(folder)


def collate(tokenizer: Any, examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, target) of shape (B, T), padded on the right; target is 1 on outputs, end token included."""
    rows, targets = [], []
    for prompt, output in examples:
        row = list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        target = [0] * len(row)
        for text, trains in [(f"{output}{END}", True)] if isinstance(output, str) else output:
            ids = tokenizer.encode(text, add_special_tokens=False)
            row += ids
            target += [int(trains)] * len(ids)
        rows.append(row)
        targets.append(target)
    width = max(map(len, rows))
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    return padded, torch.tensor([row + [0] * (width - len(row)) for row in targets])


def batch_loss(model: Any, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the output tokens; ids and target of shape (B, T) as `collate` makes them."""
    hidden = model.model(ids).last_hidden_state[:, :-1]  # causal, padded on the right: no mask needed
    trained = target[:, 1:].bool()
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[trained]), ids[:, 1:][trained])


def schedule(step: int, steps: int, lr: float) -> float:
    """Learning rate: 100 steps of warm-up (a tenth of a short run), constant, linear to 0 over the last 40%."""
    warm = min(100, max(1, steps // 10))
    return lr * min(1.0, (step + 1) / warm, (steps - step) / (0.4 * steps))


def train(
    model: Any, tokenizer: Any, teacher: Any, habits: Any, steps: int, batch_size: int, lr: float,
    report_every: int = 50,
) -> list[dict[str, float]]:  # fmt: skip
    """Train `model` in place: `steps` AdamW steps on `batch_size` demonstrations per agent.

    Returns: {"step", agent: loss of its outputs} every `report_every` steps and at the end.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    start, history = time.time(), []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule(step, steps, lr)
        losses = {}
        for agent, examples in teacher.batch(batch_size, habits).items():
            loss = batch_loss(model, *collate(tokenizer, examples))
            loss.backward()
            losses[agent] = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % report_every == 0 or step == steps - 1:
            history.append({"step": step, **losses})
            left = (time.time() - start) / (step + 1) * (steps - step - 1)
            text = "  ".join(f"{agent} {value:.3f}" for agent, value in losses.items())
            print(f"step {step}/{steps}  loss: {text}  left: {left / 60:.1f} min", flush=True)
    model.eval()
    return history


def evaluate(model: Any, tokenizer: Any, world: str, questions: int = 128) -> dict[str, dict[str, float]]:
    """{"<examination>, greedy | sampled": scores} on held-out questions (evaluate.summary)."""
    return {
        f"{name}, {'greedy' if greedy else 'sampled'}": summary(
            run_workflow(model, tokenizer, exam.workflow, exam.tasks, exam.tools, greedy)
        )
        for name, exam in COLD_STARTS[world].examinations(questions).items()
        for greedy in (True, False)
    }


def save(model: Any, tokenizer: Any, output_dir: str | Path) -> Path:
    """Write a Hugging Face folder that AutoModelForCausalLM and AutoTokenizer load."""
    target = Path(output_dir)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit status; user errors are printed without a traceback."""
    parser = Parser(description=__doc__)
    parser.add_argument("--world", choices=list(COLD_STARTS), default="search", help="which tiny model")
    parser.add_argument("--output_dir", required=True, help="Hugging Face folder to write")
    parser.add_argument("--start", help="folder of this script's output to go on from; by default an untrained model")
    parser.add_argument("--steps", type=int, default=700, help="optimiser steps on right demonstrations")
    parser.add_argument("--habit_steps", type=int, default=450, help="optimiser steps on demonstrations with habits")
    parser.add_argument("--batch_size", type=int, default=24, help="demonstrations per agent and step")
    parser.add_argument("--lr", type=float, default=2.5e-3, help="highest learning rate of the first stage")
    parser.add_argument("--habit_lr", type=float, default=5e-4, help="highest learning rate of the second stage")
    parser.add_argument("--habits", type=float, default=1.0, help="noise of the cold start: 0 none, 1 the shipped one")
    parser.add_argument("--layers", type=int, default=4, help="of an untrained model")
    parser.add_argument("--width", type=int, default=128, help="of an untrained model's layers, a multiple of 32")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the demonstrations")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more cost more than they give here")
    arguments = parser.parse_args(argv)
    return exit_status(lambda: make(arguments))


def make(args: argparse.Namespace) -> None:
    """Build, train in two stages, report after each, save."""
    torch.set_num_threads(args.threads)
    start = COLD_STARTS[args.world]
    tokenizer = tokenizer_of(args.world)
    if args.layers < 1 or args.width < 32 or args.width % 32:
        raise ValueError(
            f"--layers {args.layers} --width {args.width}: there must be a layer, and the width a multiple of 32"
        )
    fresh = None if args.start else build_model(tokenizer, args.seed, args.layers, args.width)
    model = fresh or load_model(args.start, tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    stages = [("skills", 0.0, args.steps, args.lr), ("with habits", args.habits, args.habit_steps, args.habit_lr)]
    for number, (stage, factor, steps, lr) in enumerate(stages):
        if not steps:
            continue
        teacher, habits = start.demonstrations.Teacher(args.seed + number), start.demonstrations.scaled(factor)
        train(model, tokenizer, teacher, habits, steps, args.batch_size, lr)
        save(model, tokenizer, args.output_dir)
        for name, scores in evaluate(model, tokenizer, args.world).items():
            print(f"{stage}: {name}:", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()), flush=True)
    print(f"saved to {save(model, tokenizer, args.output_dir)}")


if __name__ == "__main__":
    sys.exit(main())

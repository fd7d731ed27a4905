"""How much memory a run needs on each GPU, estimated from its configuration before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from verl_ext.trainer import modes

GIB = 2**30
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
# Bytes that vLLM's activations and CUDA graphs take of its share. An estimate; vLLM measures them when it starts.
ENGINE_OVERHEAD = 2 * GIB
# verl's fused head (model.use_fused_kernels, impl_backend=torch) has the logits of so many tokens at a time. Each logit
# takes so many bytes in its backward pass, by measurement with bf16; the second number: with an entropy bonus.
FUSED_TOKENS = 512
FUSED_BYTES = (20, 28)
# How often the logits of a micro-batch are there otherwise: with flash_attn's kernel for log-probabilities they and
# their gradients; without it a log-softmax, too; with an entropy bonus its fp32 intermediates, too (both measured).
COPIES = {"flash": 2, "plain": 3, "entropy": 8}
# The models of examples/ and others of their families, for machines that cannot reach the hub, by their config.json:
# hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, vocab_size. The models
# without -Instruct have the same sizes.
KNOWN: dict[str, tuple[int, ...]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (4096, 14336, 32, 32, 8, 128256),
    "Qwen/Qwen2.5-0.5B-Instruct": (896, 4864, 24, 14, 2, 151936),
    "Qwen/Qwen2.5-1.5B-Instruct": (1536, 8960, 28, 12, 2, 151936),
    "Qwen/Qwen2.5-3B-Instruct": (2048, 11008, 36, 16, 2, 151936),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 18944, 28, 28, 4, 152064),
    "Qwen/Qwen2.5-14B-Instruct": (5120, 13824, 48, 40, 8, 152064),
    "Qwen/Qwen2.5-32B-Instruct": (5120, 27648, 64, 40, 8, 152064),
    "Qwen/Qwen2.5-72B-Instruct": (8192, 29568, 80, 64, 8, 152064),
}
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)
TIED = tuple(f"Qwen/Qwen2.5-{size}-Instruct" for size in ("0.5B", "1.5B", "3B"))
# Positions: of Qwen2.5's Instruct models and of these two; of all others.
SHORT, LONG, ALSO_SHORT = 32768, 131072, ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-3B")


@dataclass(frozen=True)
class Model:
    """Sizes of a language model: numbers of parameters, of positions, and bytes of keys and values per token (bf16)."""

    config: Any
    parameters: int
    linear: tuple[tuple[int, int], ...]
    source: str

    @property
    def positions(self) -> int:
        """Longest sequence that the model was made for."""
        return int(self.config.max_position_embeddings)

    @property
    def kv_bytes(self) -> int:
        """Bytes that one token takes in the KV cache."""
        text = self.config
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return 2 * 2 * text.num_hidden_layers * heads * width

    def adapter(self, rank: int) -> int:
        """Parameters of LoRA on all linear layers but the head: r (in + out) each."""
        return sum(rank * (inner + outer) for inner, outer in self.linear)


def read_model(path: str) -> Model:
    """Sizes of the model in a folder, in the hub's local cache, or in `KNOWN`. Nothing is downloaded or allocated.

    Raises:
        LookupError: it is in none of them, or transformers cannot build it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config, source = AutoConfig.from_pretrained(path, local_files_only=True), "its config.json"
    except (OSError, ValueError) as error:
        name = path if path in KNOWN else f"{path}-Instruct"
        if name not in KNOWN:
            raise LookupError(
                f"{path} is neither here nor in the hub's cache, nor in the table in preflight/gpu_memory.py"
            ) from error
        kind = "qwen2" if name.startswith("Qwen") else "llama"
        positions = SHORT if path in ALSO_SHORT or (kind == "qwen2" and path == name) else LONG
        sizes = dict(zip(SIZES, KNOWN[name], strict=True))
        sizes |= {"max_position_embeddings": positions, "tie_word_embeddings": name in TIED}
        config, source = AutoConfig.for_model(kind, **sizes), "the table in preflight/gpu_memory.py"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # whatever a model's own code raises
        raise LookupError(f"{path} could not be built without its weights ({error})") from error
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    shapes = tuple((m.in_features, m.out_features) for m in linear)
    return Model(config.get_text_config(decoder=True), sum(p.numel() for p in model.parameters()), shapes, source)


class Engine(NamedTuple):
    """A rollout engine: bytes of its weights, of one token in its cache, and its share of the card."""

    weights: float
    kv_bytes: float
    share: float

    def tokens(self, card: float) -> float:
        """Tokens that its cache holds on a card of so many bytes; 0 or less: its weights do not fit."""
        return (self.share * card - self.weights - ENGINE_OVERHEAD) / self.kv_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU.

    resident: what training keeps there while the engines sample. training: the peak of an actor update, without
    engines, which sleep. sync: the peak while an engine gets new weights. parts: what `training` consists of.
    engines: one for each policy. apart: each is on GPUs of its own (`mas_separate_async`).
    """

    parts: dict[str, float]
    resident: float
    sync: float
    engines: tuple[Engine, ...]
    apart: bool = False

    @property
    def training(self) -> float:
        """Peak of an actor update."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """What the engines of a card take of it."""
        return (max if self.apart else sum)(one.share for one in self.engines)

    @property
    def weights(self) -> float:
        """Of the engines of a card."""
        return (max if self.apart else sum)(one.weights for one in self.engines)

    @property
    def sampling(self) -> str:
        """Who has what of a card while the engines sample, in words."""
        if self.apart:
            return f"the engine takes {self.share:.0%} of a GPU of its own"
        return f"about {self.resident / GIB:.0f} GiB stay; the engine takes {self.share:.0%} of the card"

    def kv_tokens(self, card: float) -> int:
        """Tokens that the cache of the engine with the least room holds on a card of so many bytes."""
        return int(min(one.tokens(card) for one in self.engines))

    def needed(self) -> float:
        """Bytes of the smallest card that holds training, the weights' way, and training's rest beside the engines.

        Infinite if the engines' shares leave nothing of a card.
        """
        alone = self.apart or not self.resident
        beside = 0.0 if alone else self.resident / (1 - self.share) if self.share < 1 else math.inf
        shares = ((one.weights + ENGINE_OVERHEAD) / one.share for one in self.engines)
        return max(self.training, self.sync, beside, *shares)


def together(each: dict[str, Memory]) -> Memory:
    """What several policies need that share a GPU, by policy. One trains while the others rest; all engines are awake.

    While one gets new weights, the others' engines have theirs. Engines on GPUs of their own share none.
    """
    resident = sum(one.resident for one in each.values())
    most = each[largest(each)]
    others = {"other policies": resident - most.resident} if len(each) > 1 else {}
    engines = tuple(engine for one in each.values() for engine in one.engines)
    awake = 0.0 if most.apart else sum(engine.weights for engine in engines)
    travels = max(one.sync - one.resident - (0.0 if one.apart else one.weights) for one in each.values())
    return Memory({**most.parts, **others}, resident, travels + resident + awake, engines, most.apart)


def largest(each: dict[str, Memory]) -> str:
    """The policy whose update needs most, besides what stays there while others train."""
    return max(each, key=lambda name: each[name].training - each[name].resident)


def estimate(config: DictConfig, model: Model, critic: bool, frozen: bool = False) -> Memory:
    """Estimate one GPU's memory. A lower bound within some GiB: allocator, buffers and CUDA itself come on top.

    Parameters, gradients and Adam's two moments are sharded over the FSDP ranks in `model_dtype`; LoRA has gradients
    and moments for its adapters only. Activations: with gradient checkpointing every layer's input and the inside of
    one layer. Logits: see `_logits`. Rows count as packed; padded ones take more (`plan.notes`). The reference model
    takes none: verl always offloads its parameters, layer by layer (transformer_impl.py, _build_fsdp_module:
    forward_only).

    When the engine gets new weights, its old ones and the bucket in which the new ones travel are on the GPU, beside
    what training keeps there. Offloaded parameters come back for it; only whole models under FSDP2 go tensor by tensor
    (get_per_tensor_param).

    Args:
        config: verl's, with `actor_rollout_ref`.
        model: of the policy; the critic is taken to be of the same size.
        critic: there is a critic.
        frozen: nothing trains.
    """
    actor, settings = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    lora, rollout = settings.lora_rank, config.actor_rollout_ref.rollout
    adapters = len(settings.lora.get("adapters") or ())  # one per agent, which the engine holds, too
    trained = model.adapter(lora) * max(1, adapters) if lora > 0 else model.parameters
    weights = model.parameters + (trained if lora > 0 else 0)
    size, shards = _weight_bytes(actor.fsdp_config), _shards(config, actor.fsdp_config)
    parts = {
        "parameters": weights * size / shards,
        "gradients": trained * size / shards,
        "optimiser": 2 * trained * size / shards,
        "activations": _activations(config, model),
        "logits": _logits(config, model),
    }
    if frozen:
        parts = {name: size if name == "parameters" else 0.0 for name, size in parts.items()}
    offload = actor.fsdp_config
    resident = 0 if offload.optimizer_offload else parts["optimiser"]
    resident += 0 if offload.param_offload else parts["parameters"]
    if critic:
        fsdp = config.critic.fsdp
        kept = (0 if fsdp.param_offload else 1) + (0 if fsdp.optimizer_offload else 2)
        parts["critic"] = kept * model.parameters * _weight_bytes(fsdp) / _shards(config, fsdp)
        resident += parts["critic"]
    tensor = rollout.tensor_model_parallel_size
    served = model.parameters + (trained if adapters else 0)
    engine = served * BYTES.get(str(rollout.dtype), 2) / tensor
    comes_back = offload.param_offload and (lora > 0 or actor.strategy == "fsdp")
    bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    apart = modes.rollout_ranks(config) > 0 and not config.actor_rollout_ref.hybrid_engine
    sync = resident + (parts["parameters"] if comes_back else 0) + (0 if apart else engine) + bucket
    engines = (Engine(engine, model.kv_bytes / tensor, rollout.gpu_memory_utilization),)
    return Memory(parts, resident, sync, engines, apart)


def fitting_tokens(config: DictConfig, memory: Memory, card: float) -> int:
    """Tokens of the largest micro-batch whose update fits into a card of so many bytes; 0: no tokens do."""
    fused = config.actor_rollout_ref.model.use_fused_kernels  # whose logits do not grow with the micro-batch
    grows = memory.parts["activations"] + (0 if fused else memory.parts["logits"])
    return max(0, int((card - memory.training + grows) * _tokens(config) / grows))


def _tokens(config: DictConfig) -> int:
    """Tokens of one micro-batch of an actor update."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return actor.ppo_max_token_len_per_gpu
    rows = actor.ppo_micro_batch_size_per_gpu or 1
    return rows * (config.data.max_prompt_length + config.data.max_response_length)


def _activations(config: DictConfig, model: Model) -> float:
    text, tokens = model.config, _tokens(config)
    # What autograd was seen to keep of a layer of Llama or Qwen2, within 15 %. Qwen3, which normalises queries, keeps a
    # quarter more.
    width = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size  # GPT-2 and OPT do not name it
    inside = 6 * text.hidden_size + 6 * width + 4 * inner
    checkpointed = config.actor_rollout_ref.model.enable_gradient_checkpointing
    layers = text.num_hidden_layers
    numbers = layers * text.hidden_size + inside if checkpointed else layers * inside
    return numbers * tokens * _compute_bytes(config.actor_rollout_ref.actor.fsdp_config)


def _logits(config: DictConfig, model: Model) -> float:
    """Bytes of one micro-batch's logits and what is made of them, in the compute precision; or of the fused head's."""
    actor, settings, tokens = config.actor_rollout_ref.actor, config.actor_rollout_ref.model, _tokens(config)
    entropy = actor.entropy_coeff != 0
    if settings.use_fused_kernels:
        return FUSED_BYTES[entropy] * min(FUSED_TOKENS, tokens) * model.config.vocab_size
    attention = OmegaConf.select(settings, "override_config.attn_implementation")
    head = "entropy" if entropy else "flash" if attention in (None, "flash_attention_2") else "plain"
    return COPIES[head] * _compute_bytes(actor.fsdp_config) * tokens * model.config.vocab_size


def _weight_bytes(fsdp: DictConfig) -> int:
    return BYTES.get(str(fsdp.model_dtype), 4)


def _compute_bytes(fsdp: DictConfig) -> int:
    return BYTES.get(str(OmegaConf.select(fsdp, "mixed_precision.param_dtype") or fsdp.dtype), 2)


def _shards(config: DictConfig, fsdp: DictConfig) -> int:
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return world if fsdp.fsdp_size in (-1, None) else min(fsdp.fsdp_size, world)

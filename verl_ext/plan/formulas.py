"""The load model: from tokens, calls and a model's size to the least seconds that each part of a step can take.

Every phase is a sum of terms, each a number of seconds (or a count) times a coefficient: `prefill` 2.0 means that the
phase takes twice the time of the peak, a utilisation of 50 %. The same terms are fitted to measured runs
(`fit`) and scaled to many GPUs (`scale`).
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_ext.plan.hardware import Device

# Terms of each phase. The names of the phases are those of verl's timing_s/.
PHASES = {
    "gen": ("prefill", "decode", "decode_steps", "calls", "tools"),
    "old_log_prob": ("forward", "forward_rows", "forward_once"),
    "ref": ("forward", "forward_rows", "forward_once"),
    "update_actor": ("update", "update_rows", "update_once"),
    "update_weights": ("weights", "sync"),
    "rest": ("rows", "once"),
}
Terms = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """Of a model: numbers in its linear layers (body) and its output layer (head), layers, width of the attention,
    bytes of its weights and of a token's keys and values in the engine."""

    body: float
    head: float
    layers: int
    width: int
    weight_bytes: float
    kv_bytes: float

    def forward(self, tokens: float) -> float:
        """Operations for a token in a sequence of so many: 2 per number; 4 per layer, width and earlier token, of which
        it sees half on average (Kaplan et al. 2020, table 1)."""
        return 2 * (self.body + self.head) + 2 * self.layers * self.width * tokens


@dataclass(frozen=True)
class Load:
    """What one step does.

    questions: of the step. calls: generations. distinct: prompts that the engine computes: a fork samples one prompt G
    times. rows: calls that train; distinct_rows: prompts among them that differ. prompt, output: mean tokens of a call.
    longest: tokens that the longest chain of calls generates one after the other. tool_turns: tools that the chain
    waits for, of tool_seconds each.
    """

    questions: float
    calls: float
    distinct: float
    rows: float
    distinct_rows: float
    prompt: float
    output: float
    longest: float
    tool_turns: float = 0.0
    tool_seconds: float = 0.0

    @property
    def generated(self) -> float:
        """Tokens generated."""
        return self.calls * self.output


def rollout(
    load: Load, sizes: Sizes, device: Device, engines: int = 1, tensor: int = 1, slots: int = 256, workers: int = 1
) -> Terms:
    """Terms of the phase `gen`.

    An engine reads all weights once for each decode step, and the keys and values of a sequence for each of its tokens.
    Its steps are at least its tokens over its slots (sequences that it decodes at a time), and at least the tokens of
    the longest chain, whose calls wait for each other however many engines there are. Engines share the calls evenly,
    each on `tensor` devices; `workers` processes run the agents.
    """
    tokens, flops, bandwidth = load.generated / engines, tensor * device.flops, tensor * device.bandwidth
    steps = max(load.longest, tokens / slots)
    context = load.prompt + load.output / 2
    read = (steps * sizes.weight_bytes + tokens * context * sizes.kv_bytes) / bandwidth
    return {
        "prefill": load.distinct / engines * load.prompt * sizes.forward(load.prompt) / flops,
        "decode": max(read, tokens * sizes.forward(2 * context) / flops),
        "decode_steps": steps,
        "calls": load.calls / workers,
        "tools": load.tool_turns * load.tool_seconds,
    }


def training(
    load: Load, sizes: Sizes, device: Device, devices: int = 1, shared: bool = False, passes: float = 3.0
) -> Terms:
    """Terms of log-probs, reference and update. Rows are not cut: with few rows per device some devices wait.

    shared: the trainer computes a prompt once that several rows have (the CPU's). passes: forward passes that an update
    costs: 3, with recomputation of activations 4, under LoRA one less.
    """
    prompts = load.distinct_rows if shared else load.rows
    tokens = prompts * load.prompt + load.rows * load.output
    uneven = -(-load.rows // devices) * devices / load.rows
    forward = uneven * tokens * sizes.forward(load.prompt + load.output) / (devices * device.flops)
    rows = load.rows / devices
    once = {"forward_once": 1.0, "update_once": 1.0}
    return {"forward": forward, "forward_rows": rows, "update": passes * forward, "update_rows": rows} | once


def synchronisation(sizes: Sizes, device: Device, devices: int = 1, hops: int = 1) -> Terms:
    """Terms of `update_weights`: every engine gets all weights; hops: 2 if they leave the trainer's devices."""
    return {"weights": hops * sizes.weight_bytes / device.bus(devices), "sync": 1.0}


def communication(load: Load, sizes: Sizes, device: Device, devices: int, micro_tokens: int) -> tuple[float, float]:
    """Seconds that FSDP's traffic takes at the full speed of the links: (a forward pass, an update).

    A micro-batch gathers all weights (2 bytes) in the forward and again in the backward pass, and scatters gradients
    (4 bytes); a device sends and receives (N − 1)/N of it.
    """
    if devices == 1:
        return 0.0, 0.0
    tokens = load.rows * (load.prompt + load.output) / devices
    batches = max(1, -(-tokens // micro_tokens))
    gather = batches * 2 * (sizes.body + sizes.head) * (devices - 1) / devices / device.bus(devices)
    return gather, 4 * gather


def seconds(phase: str, terms: Terms, coefficients: Terms) -> float:
    """Of one phase: its terms times their coefficients."""
    return sum(terms[name] * coefficients[name] for name in PHASES[phase] if name in terms)

"""Parameters, stored activations, operations and kernels of one layer on one rank.

Stored activations follow the autograd functions of Megatron Core and Transformer Engine: a matmul stores its input, a
norm its input and a number per row, attention its queries, keys, values and output, a fused activation its input.
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), derive the same sums for a
layer of GPT: 34 bytes per token and hidden element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mspc.analysis.cost.training.constants import VALUES
from mspc.analysis.cost.training.model_shape import (
    AttentionShape,
    FeedForwardShape,
    MambaShape,
    ModelLayer,
    TrainingRun,
)

HALF, SINGLE = 2, 4
"""Bytes of an element of activations and of statistics."""
MASK = 1
"""Bytes of an element of a dropout mask."""


def norm_parameters(run: TrainingRun, width: int) -> int:
    """Return the elements of a norm: a scale, and a bias unless it is an RMS norm."""
    return width if run.model.rms else 2 * width


def attention_parameters(run: TrainingRun, a: AttentionShape) -> int:
    """Return the elements of an attention on one tensor-parallel rank, its norms included."""
    h, t, model = run.model.hidden, run.tensor, run.model
    projected = a.heads * a.values * h // t + h * model.biased + norm_parameters(run, h)
    if a.key_rank:
        wide = a.queries + a.rotary
        down = h * (a.query_rank + a.key_rank + a.rotary) + a.query_rank + a.key_rank
        up = (a.query_rank or h) * a.heads * wide // t + a.key_rank * a.heads * (a.queries + a.values) // t
        return down + up + projected
    columns = a.heads * a.queries // t + max(1, a.groups // t) * (a.queries + a.values)
    biases = columns * (model.biased or model.query_biased)
    return columns * h + biases + projected + 2 * norm_parameters(run, a.queries) * a.normalized


def dense_parameters(run: TrainingRun, width: int, normalized: bool, gated: bool) -> int:
    """Return the elements of a dense feed-forward layer on one tensor-parallel rank."""
    h, inner = run.model.hidden, width // run.tensor
    columns = inner * (2 if gated else 1)
    return columns * h + inner * h + (columns + h) * run.model.biased + norm_parameters(run, h) * normalized


def mamba_parameters(run: TrainingRun, m: MambaShape) -> int:
    """Return the elements of a Mamba-2 mixer on one tensor-parallel rank."""
    h, inner = run.model.hidden, m.heads * m.head
    mixed = inner + 2 * m.groups * m.state
    columns = (inner + mixed + m.heads) // run.tensor
    convolved = mixed // run.tensor * (m.window + 1) + 3 * m.heads // run.tensor
    return columns * h + convolved + inner // run.tensor * (h + 1) + norm_parameters(run, h)


def module_parameters(run: TrainingRun, layer: ModelLayer) -> Counter[str]:
    """Return the elements of a layer's modules on one rank: "attention", "mamba" and "mamba_output", "feed" with norms,
    router and shared experts, "latent" and "experts"."""
    found: Counter[str] = Counter()
    f, h = layer.feed, run.model.hidden
    for mixer in layer.mixers:
        if isinstance(mixer, AttentionShape):
            found["attention"] += attention_parameters(run, mixer)
        else:
            output = mixer.heads * mixer.head // run.tensor * h
            found.update(mamba=mamba_parameters(run, mixer) - output, mamba_output=output)
    if f is not None and f.experts:
        shared = dense_parameters(run, f.shared, False, f.gated) if f.shared else 0
        columns, rows = f.width // run.expert_tensor * (2 if f.gated else 1), f.rows(h)
        one = columns * rows + f.width // run.expert_tensor * rows + (columns + rows) * run.model.biased
        found.update(feed=norm_parameters(run, h) + h * f.experts + shared, latent=2 * h * f.latent)
        found["experts"] = one * (f.experts // run.expert)
    elif f is not None:
        found["feed"] = dense_parameters(run, f.width, True, f.gated)
    return found


def parameters(run: TrainingRun, layer: ModelLayer) -> tuple[int, int]:
    """Return the elements of a layer on one rank: those of all ranks of a tensor group, and those of its experts."""
    found = module_parameters(run, layer)
    return sum(found.values()) - found["experts"], found["experts"]


def expert_rows(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the rows that the experts of one rank compute for a micro-batch, on average; 0 without experts."""
    f = layer.feed
    if f is None or not f.experts:
        return 0
    return run.tokens(layer.sequence) // run.rows * f.choices * run.expert_tensor


def operand_bytes(run: TrainingRun, elements: int, module: str = "") -> int:
    """Return the bytes of an operand that a module's matmul stores, with its scales."""
    recipe = dict(run.precisions).get(module, run.eight) if run.eight else ""
    return int(elements * VALUES["OPERAND_BITS"].get(recipe, 8)) // 8


def stored(run: TrainingRun, layer: ModelLayer) -> Iterator[tuple[str, int]]:
    """Yield a name and the bytes of every value that a layer stores for its backward pass, for one micro-batch."""
    tokens, h = run.tokens(layer.sequence), run.model.hidden
    outside = tokens * h // run.rows
    how = run.recomputation
    for mixer in layer.mixers:
        if "attn_norm" not in how.offloaded:
            yield "residuals", outside * HALF
        if not run.frozen and "qkv_linear" not in how.offloaded and not ("layernorm" in how.modules and not run.eight):
            yield "norms", operand_bytes(run, outside, "attention" * isinstance(mixer, AttentionShape))
        yield "norms", 2 * SINGLE * tokens // run.rows
        if isinstance(mixer, AttentionShape):
            yield from _stored_attention(run, mixer, layer)
        else:
            yield from _stored_mamba(run, mixer, tokens)
        yield "dropout masks", outside * MASK * bool(run.model.dropout)
        yield "masked values", 2 * outside * HALF * bool(run.widths)
    if layer.feed is not None:
        if "mlp_norm" not in how.offloaded:
            yield "residuals", outside * HALF
        yield "norms", 2 * SINGLE * tokens // run.rows
        yield from _stored_feed(run, layer, tokens, outside)
        yield "masked values", (2 * bool(run.widths) + run.widths) * outside * HALF
        yield "dropout masks", outside * MASK * bool(run.model.dropout)


def _stored_attention(run: TrainingRun, a: AttentionShape, layer: ModelLayer) -> Iterator[tuple[str, int]]:
    tokens, t, modules = run.tokens(layer.sequence), run.tensor, run.recomputation.modules
    offloaded = run.recomputation.offloaded
    keys = run.tokens(a.keys) if a.cross else tokens
    heads, groups = a.heads // t, max(1, a.groups // t)
    if a.key_rank:
        low = a.query_rank + a.key_rank
        yield "latents", (2 * low + a.rotary) * tokens // run.rows * HALF
        wide = a.queries + a.rotary
        if "mla_up_proj" not in modules and "core_attn" not in offloaded:
            yield "queries, keys, values", heads * (2 * wide + a.values) * tokens * HALF
    else:
        yield "queries, keys, values", (heads * a.queries * tokens + groups * (a.queries + a.values) * keys) * HALF
        if groups < heads and a.rotated:
            yield "queries, keys, values", heads * a.queries * tokens * HALF
        if a.normalized:
            yield "norms", (heads + groups) * a.queries * tokens * HALF
    if "attn_proj" not in offloaded:
        yield "attention output", heads * a.values * tokens * HALF
    if run.eight:
        yield "attention output", operand_bytes(run, heads * a.values * tokens, "attention")
    scores = heads * tokens * (a.keys or layer.sequence)
    if run.backend in ("fused", "flash"):
        yield "attention", heads * tokens * SINGLE
    elif "core_attn" not in modules | offloaded:
        # The fused softmax takes rows of multiples of 8 elements; others are converted to Float32.
        yield "attention", scores * (HALF + SINGLE * bool((a.keys or layer.sequence) % 8))
        if run.model.attention_dropout:
            yield "attention", scores * (HALF + MASK)


def _stored_mamba(run: TrainingRun, m: MambaShape, tokens: int) -> Iterator[tuple[str, int]]:
    inner, t = m.heads * m.head, run.tensor
    mixed = inner + 2 * m.groups * m.state
    # The scan stores its inputs and its output before the gate; the norm its input, and the last matmul the norm's
    # result. Convolution and states are computed again.
    yield "mixer", (inner + mixed + m.heads) // t * tokens * HALF
    yield "mixer", 3 * inner // t * tokens * HALF
    if run.widths:
        # The first matmul's result before and after its scale, and the norm's result once for each width.
        yield "masked values", (2 * (inner + mixed + m.heads) + run.widths * inner) // t * tokens * HALF


def _stored_feed(run: TrainingRun, layer: ModelLayer, tokens: int, outside: int) -> Iterator[tuple[str, int]]:
    f, modules = layer.feed or FeedForwardShape(0), run.recomputation.modules
    if not f.experts:
        if "mlp" in modules:
            return
        if not run.frozen and ("layernorm" not in modules or run.eight):
            yield "norms", operand_bytes(run, outside)
        yield from _stored_dense(run, f.width // run.tensor, f, tokens, "feed-forward")
        return
    if "moe" in modules:
        return
    if "layernorm" not in modules:
        yield "norms", outside * HALF
    yield "router", tokens // run.rows * f.experts * (2 * SINGLE + MASK)
    if f.shared:
        if run.eight:
            yield "shared experts", operand_bytes(run, tokens // run.rows * run.model.hidden)
        if "shared_experts" not in modules:
            yield from _stored_dense(run, f.shared // run.tensor, f, tokens, "shared experts")
    copies = expert_rows(run, layer)
    if "expert_fc1" not in run.recomputation.offloaded:
        yield "experts", operand_bytes(run, copies * f.rows(run.model.hidden))
    yield from _stored_dense(run, f.width // run.expert_tensor, f, copies, "experts")


def _stored_dense(
    run: TrainingRun, width: int, f: FeedForwardShape, tokens: int, name: str
) -> Iterator[tuple[str, int]]:
    """Yield the values of the hidden layer: the activation's input and output."""
    offloaded = run.recomputation.offloaded if name == "experts" else frozenset[str]()
    if "moe_act" not in offloaded:
        yield name, width * (2 if f.gated else 1) * tokens * HALF
    if not (name == "experts" and "moe_act" in run.recomputation.modules):
        yield name, operand_bytes(run, width * tokens) * (not run.frozen)
        if name == "experts" and not f.gated:
            yield name, width * tokens * HALF


def working(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the bytes of temporary values in the backward pass of a layer: gradients of its widest values, and of its
    largest weight if that is added to the sum in an own kernel."""
    tokens, h = run.tokens(layer.sequence), run.model.hidden
    most = 0
    for mixer in layer.mixers:
        if isinstance(mixer, AttentionShape):
            heads, groups = mixer.heads // run.tensor, max(1, mixer.groups // run.tensor)
            wide = mixer.queries + mixer.rotary
            most = max(most, (heads * (wide + 2 * mixer.values) + 2 * groups * wide) * tokens * HALF)
            if run.backend not in ("fused", "flash"):
                most = max(most, VALUES["SOFTMAX_VALUES"] * heads * tokens * (mixer.keys or layer.sequence) * HALF)
        else:
            inner, states = mixer.heads * mixer.head, mixer.heads * mixer.head * mixer.state // mixer.chunk
            wide = 2 * inner + 2 * (inner + 2 * mixer.groups * mixer.state)
            most = max(most, (wide * HALF + 2 * states * SINGLE) // run.tensor * tokens)
    f = layer.feed
    if f is not None:
        inner, seen = f.width // run.tensor, tokens
        if f.experts:
            inner, seen = f.width // run.expert_tensor, expert_rows(run, layer)
        most = max(most, (inner * (3 if f.gated else 2) + h) * seen * HALF)
        if not run.fused_gradients:
            most += inner * h * (2 if f.gated else 1) * HALF
    return most + 2 * tokens * h * HALF

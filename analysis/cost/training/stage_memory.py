"""Memory of every pipeline stage of a training run at its peak, each part with a name and its origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from itertools import accumulate, pairwise

from mspc.analysis.cost.training.constants import VALUES
from mspc.analysis.cost.training.layer_costs import (
    HALF,
    MASK,
    SINGLE,
    norm_parameters,
    operand_bytes,
    parameters,
    stored,
    working,
)
from mspc.analysis.cost.training.model_shape import ModelLayer, TrainingRun
from mspc.ir.late_dataclass import dataclass

DIVIDED = ("states", "gradients", "parameters")
"""Kinds of sharding: each divides its part and those of the kinds before it."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one rank of a stage, by part; `peak` is their sum, as the allocator counts it."""

    stage: int
    parts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())


def stage_layers(run: TrainingRun) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the numbers of the layers of every chunk of every stage."""
    if run.stages:
        return run.stages
    count, stages, chunks = len(run.model.layers), run.pipeline, run.chunks
    first, last = run.first_layers, run.last_layers
    if not first and not last and count % (stages * chunks):
        return uneven_layers(run)
    between = stages - bool(first) - bool(last)
    each = (count - first - last) // between if between else 0
    counts = [first if first and not p else last if last and p == stages - 1 else each for p in range(stages)]
    return chunks_in_turn(accumulate([size // chunks for size in counts] * chunks, initial=0), stages)


def uneven_layers(run: TrainingRun, first: int = 1, last: int = 1) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the layers of every chunk if they cannot be equal: the embedding, the loss and each further prediction
    count as a layer. first, last: 0 if the embedding or the loss is none."""
    count, parts = len(run.model.layers), run.pipeline * run.chunks
    each, more = divmod(count + first + last + run.model.predictions, parts)
    items = accumulate((each + (part < more) for part in range(parts)), initial=0)
    return chunks_in_turn((max(0, min(count, item - first)) for item in items), run.pipeline)


def chunks_in_turn(borders: Iterable[int], stages: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the layers of every chunk of every stage, which get the chunks in turn. borders: the first layer of each
    chunk, and the end of the last one."""
    chunks = [tuple(range(begin, end)) for begin, end in pairwise(borders)]
    return tuple(tuple(chunks[stage::stages]) for stage in range(stages))


def in_flight(run: TrainingRun, stage: int) -> list[int]:
    """Return the model chunks whose activations a stage holds at its peak, one entry for each micro-batch.

    Megatron Core, pipeline_parallel/schedules.py: a stage runs `stages - stage - 1` forward passes ahead of its first
    backward pass, or twice that and a group for each further chunk if it has several, and one more if collectives of
    experts overlap.
    """
    ahead = run.pipeline - stage - 1
    total = run.micro_batches * run.chunks
    if run.chunks == 1:
        return [0] * min(total, ahead + 1)
    group = run.group or run.pipeline
    count = min(total, 2 * ahead + (run.chunks - 1) * group + 1 + run.overlapped_experts)
    return [number // group % run.chunks for number in range(count)]


def stage_memory(run: TrainingRun, stage: int) -> StageMemory:
    """Return the memory of one rank of a stage at its peak."""
    model = run.model
    last, first = stage == run.pipeline - 1, stage == 0
    chunks = stage_layers(run)[stage]
    numbers = [i for chunk in chunks for i in chunk]
    layers = [model.layers[i] for i in numbers]
    found: Counter[str] = Counter()
    _add_states(run, numbers, first, last, found)
    activations = [_chunk_activations(run, chunk) for chunk in chunks]
    for chunk in in_flight(run, stage):
        found.update(activations[chunk])
    tokens = run.tokens(model.sequence)
    edge = tokens * model.hidden // run.rows
    if first and model.dropout:
        found["activations: dropout masks"] += edge * MASK
    if run.pipeline > 1:
        found["communication buffers"] += 2 * edge * HALF
    if run.masked and run.library == "te":
        found["attention mask"] += 2 * run.micro_batch * model.sequence * model.sequence * MASK // run.context
    if model.encoders:
        encoded = run.tokens(model.layers[0].sequence) * model.hidden // run.rows
        found["activations: norms"] += 2 * encoded * HALF
        found["activations: dropout masks"] += encoded * MASK
    loss = 0
    if last:
        found["activations: norms"] += 2 * edge * HALF
        found["activations: predictions"] += model.predictions * _prediction_activations(run)
        loss = loss_bytes(run)
        found["deferred logits"] += min(run.deferred_embedding, run.micro_batches) * (
            tokens * model.vocabulary // run.tensor * HALF + edge * HALF
        )
    if run.recomputation.offloaded:
        found["activations: not yet offloaded"] += 2 * max((offloaded_bytes(run, layer) for layer in layers), default=0)
    widest = max((working(run, layer) for layer in layers), default=0)
    if run.sharding == "parameters":
        found["parameters of one unit in full"] += _largest_unit(run, layers, first, last, loss >= widest)
    found["loss" if loss >= widest else "temporary"] += max(loss, widest)
    grouped = any(layer.feed is not None and layer.feed.experts and layer.feed.grouped for layer in layers)
    found["workspaces"] += VALUES["WORKSPACES"] + VALUES["GROUPED_WORKSPACES"] * grouped
    found["workspaces"] += VALUES["OVERLAPPED_WORKSPACES"] * run.overlapped_tensor
    found["inference cache"] += run.reserved
    if run.frozen and run.parameter < SINGLE:
        rest = sum(found.values()) - found["weights"]
        found["weights while loaded"] = max(0, found["weights"] * SINGLE // run.parameter - rest)
    return StageMemory(stage, {name: nbytes for name, nbytes in found.items() if nbytes})


def loss_bytes(run: TrainingRun) -> int:
    """Return the bytes of the logits and their gradients at the peak of the loss.

    Megatron Core, tensor_parallel/cross_entropy.py: logits in half precision and their exponentials in Float32, which
    become the gradient in place; the fused version holds the logits in Float32, too. Transformer Engine's writes the
    gradient over the logits.
    """
    elements = run.tokens(run.model.sequence) * run.model.vocabulary // run.tensor
    if run.loss == "te":
        return elements * HALF
    stored_predictions = run.model.predictions * SINGLE
    return elements * (HALF + SINGLE + (SINGLE if run.loss == "native" else 0) + stored_predictions)


def _prediction_activations(run: TrainingRun) -> int:
    """Return the stored bytes of a layer that predicts further tokens: two norms, their concatenation, the layer."""
    model = run.model
    edge = run.tokens(model.sequence) * model.hidden // run.rows
    layer = model.layers[-1]
    return 6 * edge * HALF + sum(busiest(run, layer, name, nbytes) for name, nbytes in stored(run, layer))


def offloaded_bytes(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the bytes of a layer that go to host memory. Those of two layers are on the device: one is computed while
    the one before it is copied."""
    whole = replace(run, recomputation=replace(run.recomputation, offloaded=frozenset()))
    return sum(n for _, n in stored(whole, layer)) - sum(n for _, n in stored(run, layer))


def _largest_unit(run: TrainingRun, layers: list[ModelLayer], first: bool, last: bool, at_loss: bool) -> int:
    """Return the bytes of weights of the largest unit that is gathered at once: a layer, or the embedding with the
    output layer. Its gradients are there, too, unless the peak is at the loss, before the first of them."""
    outer = stage_parameters(run, [], first, last)[0]
    size = run.parameter if at_loss else run.parameter + run.gradient
    return max([outer, *(sum(parameters(run, layer)) for layer in layers)]) * size


def _add_states(run: TrainingRun, numbers: list[int], first: bool, last: bool, found: Counter[str]) -> None:
    """Add weights, gradients and optimizer states. numbers: of the stage's layers."""
    layers = run.model.layers
    dense, experts = stage_parameters(run, [layers[i] for i in numbers], first, last)
    few = [parameters(run, layers[i]) for i in numbers if run.at_layer(i).eight]
    share = run.divided or run.data * run.context
    groups = max(1, run.data * run.context // share)
    expert_share = max(1, run.ranks // (run.pipeline * run.expert * run.expert_tensor * groups))
    if run.frozen:
        elements = dense + experts + run.frozen
        found["weights"] += elements * run.parameter
        return
    for kind, elements, ranks in ((0, dense, share), (1, experts, expert_share)):
        over = [ranks if run.sharding in kinds else 1 for kinds in (("parameters",), DIVIDED[1:], DIVIDED)]
        # Quantised weights are stored by rows and by columns, and half ones beside them unless the former are gathered.
        narrow = sum(each[kind] for each in few)
        wide = elements - narrow * run.gathered_operands
        found["weights"] += (2 * operand_bytes(run, narrow) + wide * run.parameter) // over[0]
        found["gradients"] += elements * run.gradient // over[1]
        found["optimizer states"] += elements * run.state // (over[2] * (groups if run.outer_states else 1))


def stage_parameters(run: TrainingRun, layers: list[ModelLayer], first: bool, last: bool) -> tuple[int, int]:
    """Return the elements of a stage's parameters on one rank: all but experts, and experts."""
    model, h = run.model, run.model.hidden
    sums = [parameters(run, layer) for layer in layers]
    dense, experts = sum(d for d, _ in sums), sum(e for _, e in sums)
    table = model.vocabulary * h // run.tensor
    if first:
        dense += table + (model.positions + model.types) * h
    for _ in range(model.predictions if last else 0):
        more = parameters(run, model.layers[-1])
        dense += more[0] + 2 * h * h // run.tensor + 3 * norm_parameters(run, h)
        experts += more[1]
    if last:
        dense += norm_parameters(run, h) + model.heads * h * (h + 1)
        dense += table if model.predictions and not first and not model.tied else 0
        if model.encoders:
            dense += norm_parameters(run, h)
        dense += 0 if model.tied and first else table
    return dense, experts


def _chunk_activations(run: TrainingRun, chunk: Sequence[int]) -> Counter[str]:
    """Return the stored bytes of a chunk's layers for one micro-batch, by name."""
    found: Counter[str] = Counter()
    how = run.recomputation
    if how.granularity == "full":
        count = min(how.layers, len(chunk)) if how.block else len(chunk)
        inputs = count if how.block else -(-len(chunk) // how.layers)
        edge = run.tokens(run.model.layers[chunk[0]].sequence) * run.model.hidden // run.rows if chunk else 0
        found["activations: residuals"] += inputs * edge * HALF
        rest = chunk[count:]
    else:
        # A layer on the host is computed while the one before it is copied.
        rest = chunk[max(0, how.host_layers - 2) :]
    for number in rest:
        layer = run.model.layers[number]
        for name, nbytes in stored(run.at_layer(number), layer):
            found[f"activations: {name}"] += busiest(run, layer, name, nbytes)
    return found


def busiest(run: TrainingRun, layer: ModelLayer, name: str, nbytes: int) -> int:
    """Return the bytes of a layer's stored value on the busiest rank, from those of an average one."""
    f = layer.feed
    if name != "experts" or run.expert == 1 or f is None or f.routing == "forced":
        return nbytes
    if f.routing == "loss":
        return int(nbytes * VALUES["UNEVEN_ROUTING"])
    collapsed = min(f.choices, f.experts // run.expert) * run.expert / f.choices
    return int(nbytes * (1 + VALUES["UNTRAINED_SHARE"] * (collapsed - 1)))

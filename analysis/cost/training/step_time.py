"""Time of a training step: a roofline of every layer on the device, beside the time in which the host starts kernels.

A chunk of a stage takes the longer of both for a micro-batch. The step is that of the slowest stage under 1F1B, with
the bubble of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(2021): (stages - 1) / chunks further micro-batches. Collectives of data parallelism are hidden behind the backward pass
if the run overlaps them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace

from mspc.analysis.cost.machine import EIGHT_BIT_SHARE, HOST_COPIES, NVFP4, PRODUCTS, Machine, Rate, of_eight_bits
from mspc.analysis.cost.training.constants import VALUES
from mspc.analysis.cost.training.layer_costs import HALF, SINGLE, expert_rows, module_parameters, parameters, stored
from mspc.analysis.cost.training.model_shape import (
    AttentionShape,
    FeedForwardShape,
    MambaShape,
    ModelLayer,
    Recomputation,
    TrainingRun,
)
from mspc.analysis.cost.training.stage_memory import offloaded_bytes, stage_layers, stage_memory, stage_parameters
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT32


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step and of its parts. parts: matmuls, memory, host, bubble, update and exposed communication by
    dimension; they add up to `seconds`. operations: floating-point operations of the model in a step on all ranks.
    bounds: seconds for which a step keeps each resource busy, and those of its critical path. No overlap makes a step
    shorter than the longest of them at the machine's rates."""

    seconds: float
    parts: dict[str, float] = field(default_factory=dict[str, float])
    bounds: dict[str, float] = field(default_factory=dict[str, float])
    operations: float = 0.0
    kernels: int = 0
    host_bound: bool = False


def group_ranks(run: TrainingRun, dimension: str) -> range:
    """Return the ranks of the first group of a dimension. Megatron's order is tensor, context, data, pipeline."""
    strides = {
        "tensor": (run.tensor, 1), "context": (run.context, run.tensor), "expert": (run.expert, run.expert_tensor),
        "pipeline": (run.pipeline, run.tensor * run.context if run.pipeline_inner else run.ranks // run.pipeline),
    }  # fmt: skip
    count, stride = strides[dimension]
    return range(0, count * stride, stride)


def kernels(run: TrainingRun, layer: ModelLayer) -> tuple[int, int]:
    """Return the kernels of a layer's forward and backward pass that the host starts one by one."""
    forward, biased = 0, run.model.biased and not run.fused_experts
    for mixer in layer.mixers:
        if ("attn" if isinstance(mixer, AttentionShape) else "mamba") in run.graphs:
            continue
        if isinstance(mixer, AttentionShape):
            core = 2 if run.backend in ("fused", "flash") else 7
            rotary = 0 if not mixer.rotated else 2 if run.fused_rotary else 14
            forward += 8 + core + rotary + 2 * mixer.normalized + (14 if mixer.key_rank else 0)
        else:
            forward += 14
        forward += 2 if run.model.dropout else 1
        # Masks of an elastic model are made of those of its widths, and so are scales of what they hide.
        forward += run.widths * (5 if isinstance(mixer, AttentionShape) else 16)
    feed = layer.feed
    if feed is not None:
        forward += 5 * run.widths
        forward += 6 + (2 if run.model.dropout else 1)
        if feed.experts:
            forward += (45 if feed.grouped else 15) + (10 if feed.shared else 0)
            forward += 0 if feed.grouped else 4 * feed.experts // run.expert
            forward += VALUES["BIAS_KERNELS"] * feed.experts // run.expert * biased
            # Router, and counts and maps of the rows that go to each expert.
            forward -= 15 * ("moe_router" in run.graphs) + 15 * ("moe_preprocess" in run.graphs)
    between = 2 if run.tensor > 1 else 0
    forward += between * 2 + (6 if run.eight else 0)
    weights = 4 * (not run.fused_gradients) + 2
    backward = 2 * forward + weights * (bool(layer.mixers) + bool(feed))
    if run.recomputation.granularity == "full":
        backward += forward
    return (0, 0) if "all" in run.graphs else (forward, backward)


def layer_operations(run: TrainingRun, layer: ModelLayer) -> tuple[float, float, float]:
    """Return the floating-point operations of a layer's forward pass for one micro-batch on one rank: matmuls, those of
    experts, and attention between queries and keys."""
    tokens = run.tokens(layer.sequence)
    dense, experts = parameters(run, layer)
    f = layer.feed
    routed = 0.0
    if f is not None and f.experts:
        one = experts / max(1, f.experts // run.expert)
        routed = 2.0 * one * expert_rows(run, layer)
    return 2.0 * dense * tokens, routed, sum(mixer_operations(run, layer, mixer) for mixer in layer.mixers)


def mixer_operations(run: TrainingRun, layer: ModelLayer, mixer: AttentionShape | MambaShape, tile: int = 0) -> float:
    """Return the floating-point operations of a mixer between its matmuls, forward. tile: keys beside a window that
    are computed with it."""
    tokens = run.tokens(layer.sequence) / run.tensor
    if not isinstance(mixer, AttentionShape):
        return tokens * mixer.heads * mixer.head * (2.0 * mixer.chunk + 4.0 * mixer.state)
    keys = mixer.keys or layer.sequence
    window = min(keys, mixer.window + tile) if mixer.window else keys
    seen = window * (1 - window / keys / 2) if mixer.causal else window
    return 2.0 * tokens * seen * (mixer.queries + mixer.rotary + mixer.values) * mixer.heads


def recomputed_operations(run: TrainingRun, layer: ModelLayer) -> tuple[float, float, float]:
    """Return the operations of `layer_operations` that the backward pass of a micro-batch does again."""
    how, f = run.recomputation, layer.feed
    dense, routed, scores = layer_operations(run, layer)
    if how.granularity != "selective":
        return (dense, routed, scores) if how.granularity == "full" else (0.0, 0.0, 0.0)
    elements = 0
    for a in layer.mixers:
        if isinstance(a, AttentionShape) and a.key_rank and "mla_up_proj" in how.modules:
            columns = a.query_rank * (a.queries + a.rotary) + a.key_rank * (a.queries + a.values)
            elements += a.heads * columns // run.tensor
    experts = f is not None and f.experts > 0
    if f is not None and ("moe" if experts else "mlp") in how.modules:
        elements += parameters(run, replace(layer, mixers=()))[0]
    if not ("moe" in how.modules and experts):
        routed = 0.0
    attention = "core_attn" in how.modules and all(isinstance(mixer, AttentionShape) for mixer in layer.mixers)
    return 2.0 * elements * run.tokens(layer.sequence), routed, scores if attention else 0.0


def model_operations(run: TrainingRun) -> float:
    """Return the floating-point operations of the model in a step on all ranks, without recomputation and the
    gradients of frozen weights."""
    per_rank = sum(sum(layer_operations(run, layer)) for layer in run.model.layers)
    model = run.model
    logits = 2.0 * run.tokens(model.sequence) * model.hidden * model.vocabulary / run.tensor * (1 + model.predictions)
    per_rank += model.predictions * sum(layer_operations(run, model.layers[-1]))
    return (2.0 if run.frozen else 3.0) * (per_rank + logits) * run.micro_batches * run.ranks / run.pipeline


def step_time(run: TrainingRun, machine: Machine) -> StepTime:
    """Return the estimated time of a step, its parts and its bounds."""
    stages = [_stage_time(run, machine, stage) for stage in range(run.pipeline)]
    slowest = max((parts for parts, _ in stages), key=lambda parts: sum(parts.values()))
    one = sum(slowest.values())
    count = run.micro_batches
    parts = Counter({name: seconds * count for name, seconds in slowest.items()})
    if run.pipeline > 1:
        parts["bubble"] += one * (run.pipeline - 1) / run.chunks
        edge = run.tokens(run.model.sequence) * run.model.hidden // run.rows * HALF
        send = machine.collective_seconds("Send", edge, group_ranks(run, "pipeline")[:2])
        parts["pipeline"] += 2 * send * (run.pipeline - 1 + count * 0.5 * run.chunks)
    once, exchanged = _update_time(run, machine, one, max(loads["network card"] for _, loads in stages))
    parts.update(once)
    launched = sum(sum(kernels(run, layer)) for layer in run.model.layers) // run.pipeline * count
    slower = math.exp(-VALUES["SPEED_UP"] * run.software)
    parts = Counter({name: seconds * slower for name, seconds in parts.items()})
    total = sum(parts.values())
    after = once["host of a step"] + once.get("update", 0.0)
    bounds = lower_bounds(run, [loads for _, loads in stages], after, exchanged)
    bounds = {name: seconds * min(1.0, slower) for name, seconds in bounds.items() if seconds}
    host = parts["host"] + parts["host of a step"] > 0.5 * (total - parts["bubble"])
    return StepTime(total, dict(parts), bounds, model_operations(run), launched, host)


def lower_bounds(run: TrainingRun, stages: Sequence[Counter[str]], once: float, exchanged: float) -> dict[str, float]:
    """Return the seconds for which a step keeps every resource of its busiest rank, and those of its critical path: all
    micro-batches of a stage, the first of them through one chunk of every other stage and back, and the update. stages:
    seconds of one micro-batch on each stage, by resource. once: seconds of the host and the update, which follow the
    last backward pass. exchanged: seconds of the collectives of data parallelism."""
    count = run.micro_batches
    found = {name: count * max(loads[name] for loads in stages) for name in sorted({*itertools.chain(*stages)})}
    found["links, data"] = exchanged
    passing = sum(loads["device"] for loads in stages) / run.chunks
    path = max(loads["device"] * (count - 1 / run.chunks) for loads in stages) + passing + once
    return found | {"critical path": path}


def peak_bounds(run: TrainingRun, machine: Machine) -> dict[str, float]:
    """Return the bounds of a step by the work that no implementation of these degrees avoids, at the rates of the data
    sheet, which no device exceeds: matmuls without recomputation, and one pass of the update over its states. The
    result is empty if the rates are unknown."""
    if not machine.peak:
        return {}
    stages = [_least_loads(run, machine, stage) for stage in range(run.pipeline)]
    found = lower_bounds(run, stages, 0.0, 0.0)
    found["memory"] = 2 * stage_memory(run, 0).parts.get("optimizer states", 0) / machine.peak["memory"]
    return {name: seconds for name, seconds in found.items() if seconds}


def _least_loads(run: TrainingRun, machine: Machine, stage: int) -> Counter[str]:
    """Return the seconds of the matmuls of one micro-batch of a stage that no implementation avoids."""
    model, last, seconds = run.model, stage == run.pipeline - 1, 0.0
    half, rate = machine.peak[BFLOAT16.name], peak_rate(run, machine)
    layers = [model.layers[number] for chunk in stage_layers(run)[stage] for number in chunk]
    for layer in [*layers, *([model.layers[-1]] * model.predictions if last else ())]:
        dense, routed, scores = layer_operations(run, layer)
        seconds += (dense + routed) / rate + scores / (rate if run.eight_attention else half)
    if last:
        logits = run.tokens(model.sequence) * model.vocabulary // run.tensor * (1 + model.predictions)
        seconds += 2 * logits * model.hidden / (rate if run.eight_output else half)
    return Counter({"device": seconds * (2 if run.frozen else 3)})


def _stage_time(run: TrainingRun, machine: Machine, stage: int) -> tuple[Counter[str], Counter[str]]:
    """Return the seconds of one micro-batch of a stage, forward and backward, by part, and by the resource that they
    keep busy."""
    found: Counter[str] = Counter()
    loads: Counter[str] = Counter()
    numbers = [number for chunk in stage_layers(run)[stage] for number in chunk]
    layers = [run.model.layers[number] for number in numbers]
    started = sum(sum(kernels(run, layer)) for layer in layers)
    loads["host"] = started * VALUES[f"HOST_{run.library.upper()}"]
    loads["host"] += VALUES["HOST_RUN"] * run.chunks * ("all" not in run.graphs)
    last = stage == run.pipeline - 1
    kinds: dict[tuple[str, ModelLayer], list[int]] = {}
    for number in [*numbers, *([len(run.model.layers) - 1] * run.model.predictions if last else ())]:
        kinds.setdefault((run.at_layer(number).eight, run.model.layers[number]), []).append(number)
    for (_, layer), alike in kinds.items():
        _add_layers(run.at_layer(alike[0]), machine, layer, len(alike), found, loads)
    for layer in layers[: run.recomputation.host_layers]:
        loads["copies to the host"] += 2 * machine.moving_seconds(sum(n for _, n in stored(run, layer)), HOST_COPIES)
    found["offload"] += max(0.0, loads["copies to the host"] - sum(found.values()))
    if last:
        _add_loss(run, machine, found, loads)
    found["host"] += max(0.0, loads["host"] - sum(found.values()))
    return found, loads


def _add_layers(
    run: TrainingRun, machine: Machine, layer: ModelLayer, count: int, found: Counter[str], loads: Counter[str]
) -> None:
    """Add the parts of equal layers, forward and backward, and the seconds for which they keep each resource busy."""
    dense, routed, _ = layer_operations(run, layer)
    f, rate, times = layer.feed, matmul_rate(run, machine), 2 if run.frozen else 3
    whole = replace(run, recomputation=Recomputation())
    every, left = (sum(n for _, n in stored(each, layer)) for each in (whole, run))
    dropped = every if run.recomputation.granularity == "full" else every - left
    nbytes = every * (VALUES["FORWARD_PASSES"] + VALUES["BACKWARD_PASSES"]) + dropped * VALUES["FORWARD_PASSES"]
    nbytes += VALUES["PERMUTED_PASSES"] * _routed_bytes(run, layer)
    nbytes += VALUES["GROUPED_BYTES"] * (_expert_elements(run, layer) + parameters(run, layer)[1])
    more = recomputed_operations(run, layer)
    if run.eight:
        # Operands are read in half precision and written twice in 8 bits, by rows and by columns: forward the inputs of
        # four matmuls, backward the gradients of their results.
        converted = {"mxfp8": "CONVERTED_BLOCKS", "nvfp4": "CONVERTED_NVFP4"}.get(run.eight, "CONVERTED")
        nbytes += VALUES[converted] * _matmul_elements(run, layer)
    parts = {
        "matmuls": (times * (dense + routed) + more[0] + more[1]) / rate.at(dense + routed),
        "attention": sum(_mixer_time(run, machine, layer, mixer, more[2] > 0) for mixer in layer.mixers),
        "memory": machine.moving_seconds(nbytes) + _sliced_seconds(run, machine, layer),
    }
    for module, recipe in run.precisions * bool(run.eight):
        own = matmul_rate(replace(run, eight=recipe), machine)
        operations = 2.0 * module_parameters(run, layer)[module] * run.tokens(layer.sequence)
        parts["matmuls"] += times * operations * (1 / own.at(operations) - 1 / rate.at(operations))
    work = sum(parts.values())
    loads["device"] += work * count
    if f is not None and f.experts and not run.fused_experts and "all" not in run.graphs:
        started = VALUES["GROUPED_LAUNCH"] * (f.experts // run.expert)
        parts["host"] = max(0.0, 4 * started - 2 * routed / rate.at(routed))
        # The host waits for the numbers of rows of each expert, so it starts the forward pass of experts anew.
        alone = replace(layer, mixers=())
        forward = work / 3 * sum(layer_operations(run, alone)) / sum(layer_operations(run, layer))
        launched = kernels(run, alone)[0] * VALUES[f"HOST_{run.library.upper()}"] + 2 * started
        parts["host"] += max(0.0, launched - forward)
    hidden = 0.0
    for dimension, (seconds, exposed) in _layer_communication(run, machine, layer).items():
        loads[f"links, {dimension}"] += seconds * count
        # No more than the layer's work hides a collective that overlaps it.
        parts[dimension] = max(seconds * exposed, seconds - work)
        if len(machine.hosts(group_ranks(run, dimension))) > 1:
            loads["network card"] += seconds * count
            hidden += seconds - parts[dimension]
    # Collectives between hosts share the rank's network card, so that together they hide no longer than the work takes.
    parts["network card"] = max(0.0, hidden - work)
    if run.recomputation.offloaded:
        copies = 2 * machine.moving_seconds(offloaded_bytes(run, layer), HOST_COPIES)
        parts["offload"] = max(0.0, copies - work)
        loads["copies to the host"] += copies * count
    found.update({name: seconds * count for name, seconds in parts.items()})


def _sliced_seconds(run: TrainingRun, machine: Machine, layer: ModelLayer) -> float:
    """Return the seconds of kernels on slices and mixed types, which the rate of instructions bounds: biases of experts
    and clamped inputs of activations."""
    f = layer.feed
    if f is None or run.fused_experts:
        return 0.0
    inner = f.width // (run.expert_tensor if f.experts else run.tensor)
    clamped = VALUES["CLAMP_SECONDS"] * f.clamped * inner * (expert_rows(run, layer) or run.tokens(layer.sequence))
    biased = VALUES["BIAS_SECONDS"] * run.model.biased * expert_rows(run, layer) * run.model.hidden
    return (clamped + biased) * VALUES["SLICED_VECTOR"] / machine.peak.get("vector", VALUES["SLICED_VECTOR"])


def _mixer_time(
    run: TrainingRun, machine: Machine, layer: ModelLayer, mixer: AttentionShape | MambaShape, again: bool
) -> float:
    """Return the seconds of a mixer between its matmuls, forward and backward; forward twice if it is recomputed."""
    scores = mixer_operations(run, layer, mixer, VALUES["WINDOW_TILES"])
    rate = machine.work_rate(PRODUCTS, BFLOAT16).at(scores)
    if not isinstance(mixer, AttentionShape):
        states = mixer.heads * mixer.head * mixer.state // mixer.chunk * SINGLE
        mixed = (mixer.heads * mixer.head + 2 * mixer.groups * mixer.state) * HALF
        passes = VALUES["SCAN_PASSES"] * states + VALUES["CONVOLUTION_PASSES"] * mixed
        moved = machine.moving_seconds(passes // run.tensor * run.tokens(layer.sequence))
        return (3.5 + again) * scores / (rate * VALUES["SCAN_SHARE"]) + moved
    head, narrow = mixer.queries + mixer.rotary, VALUES["NARROW_ATTENTION"]
    rate *= min(1.0, narrow + (1 - narrow) * (head / 64 - 1))
    backward = 2.5 * scores
    if run.eight_attention:
        rate *= VALUES[f"ATTENTION_{'MXFP8' if run.eight == 'mxfp8' else 'FP8'}{'_WIDE' * (head > 128)}"]
        backward = 2.5 * mixer_operations(run, layer, replace(mixer, window=0))
    return ((1 + again) * scores + backward) / rate


def matmul_rate(run: TrainingRun, machine: Machine) -> Rate:
    """Return the rate of a layer's matmuls in the run's precision."""
    four = machine.work[PRODUCTS].get(NVFP4)
    if run.eight == "nvfp4" and four is not None:
        return four
    return of_eight_bits(half_rate(run, machine)) if run.eight else half_rate(run, machine)


def peak_rate(run: TrainingRun, machine: Machine) -> float:
    """Return the rate of matmuls in the run's precision by the data sheet, or the machine's own rate without one."""
    if not machine.peak:
        return matmul_rate(run, machine).at(1e12)
    rate = machine.peak[BFLOAT16.name] * (EIGHT_BIT_SHARE if run.eight else 1.0)
    return max(rate, machine.peak.get(NVFP4, 0.0)) if run.eight == "nvfp4" else rate


def half_rate(run: TrainingRun, machine: Machine) -> Rate:
    """Return the rate of matmuls that stay in half precision, or in Float32 if the run does."""
    return machine.work_rate(PRODUCTS, BFLOAT16 if run.parameter == HALF else FLOAT32)


def _layer_communication(run: TrainingRun, machine: Machine, layer: ModelLayer) -> dict[str, tuple[float, float]]:
    """Return the seconds of a layer's collectives, forward and backward, by dimension, and the share of them that is
    exposed beside enough work."""
    found: dict[str, tuple[float, float]] = {}
    nbytes = run.tokens(layer.sequence) * run.model.hidden * HALF
    f: FeedForwardShape | None = layer.feed
    if run.tensor > 1:
        divided = f is not None and (not f.experts or run.expert_tensor > 1 or f.shared > 0)
        times = 2 * (len(layer.mixers) + divided)
        group = group_ranks(run, "tensor")
        sent = 2 * nbytes * (run.tensor - 1) // run.tensor
        one = machine.collective_seconds("AllReduce", sent, group)
        found["tensor"] = one * times, VALUES["EXPOSED"] if run.overlapped_tensor else 1.0
    if f is not None and f.experts and run.expert > 1:
        rows = _routed_bytes(run, layer)
        group = group_ranks(run, "expert")
        hosts = -(-len(group) * run.expert_tensor // (machine.ranks_per_host or run.ranks))
        if f.dispatcher == "flex":
            parts = hosts if hosts > 1 else len(group)
            rows = int(rows * parts * (1 - (1 - 1 / parts) ** f.choices) / f.choices)
        one = machine.collective_seconds("AlltoAll", rows * (run.expert - 1) // run.expert, group)
        one /= VALUES["FLEX_SPEED"] if f.dispatcher == "flex" and hosts == 1 else 1.0
        again = "moe" in run.recomputation.modules or run.recomputation.granularity == "full"
        found["expert"] = (6 if again else 4) * one, VALUES["EXPOSED"] if run.overlapped_experts else 1.0
    if run.context > 1:
        group = group_ranks(run, "context")
        keys = sum(2 * a.groups * a.values // run.tensor for a in layer.mixers if isinstance(a, AttentionShape))
        sent = run.tokens(layer.sequence) * keys * HALF * (run.context - 1)
        found["context"] = 3 * machine.collective_seconds("AllGather", sent, group), VALUES["EXPOSED_CONTEXT"]
    return found


def _matmul_elements(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the elements of the inputs and results of a layer's matmuls for one micro-batch on one rank."""
    tokens, h = run.tokens(layer.sequence), run.model.hidden
    mixers = [mixer for mixer in layer.mixers if isinstance(mixer, AttentionShape)]
    columns = sum((a.heads + a.groups) * (a.queries + a.values) for a in mixers)
    elements = tokens * (2 * h // run.rows * len(mixers) + columns // run.tensor)
    f = layer.feed
    if f is not None and not f.experts:
        elements += tokens * (2 * h + f.width * (3 if f.gated else 2) // run.tensor)
    # A fused kernel of the experts' matmuls converts their operands as it makes them.
    return elements if run.fused_experts else elements + _expert_elements(run, layer)


def _expert_elements(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the elements of the inputs and results of the experts' matmuls for one micro-batch on one rank."""
    f = layer.feed
    if f is None:
        return 0
    columns = 2 * f.rows(run.model.hidden) + f.width * (3 if f.gated else 2) // run.expert_tensor
    return expert_rows(run, layer) * columns


def _routed_bytes(run: TrainingRun, layer: ModelLayer) -> int:
    """Return the bytes of the rows that a rank sends to experts for one micro-batch. A dispatcher that is not "flex"
    sends a row once to each expert, that one sends it once to each rank, and to each other host."""
    return expert_rows(run, layer) * layer.feed.rows(run.model.hidden) * HALF if layer.feed is not None else 0


def _add_loss(run: TrainingRun, machine: Machine, found: Counter[str], loads: Counter[str]) -> None:
    """Add the output layer and the loss of a micro-batch."""
    model = run.model
    logits = run.tokens(model.sequence) * model.vocabulary // run.tensor * (1 + model.predictions)
    operations = 6.0 * logits * model.hidden
    parts = {
        "matmuls": operations / (matmul_rate if run.eight_output else half_rate)(run, machine).at(operations),
        "loss": machine.moving_seconds(logits * VALUES[f"LOSS_{run.loss.upper()}"]),
    }
    found.update(parts)
    loads["device"] += sum(parts.values())


def _update_time(run: TrainingRun, machine: Machine, one: float, cards: float) -> tuple[dict[str, float], float]:
    """Return the seconds of the update and of the exposed collectives of data parallelism, and those of all of them.

    one: seconds of a micro-batch. cards: those for which its collectives use the network card, which leave less time
    to hide gradients and parameters that travel between hosts.
    """
    layers = [run.model.layers[i] for chunk in stage_layers(run)[0] for i in chunk]
    dense, experts = stage_parameters(run, layers, True, run.pipeline == 1)
    replicas = run.data * run.context
    expert_replicas = max(1, run.ranks // (run.pipeline * run.expert * run.expert_tensor))
    share, expert_share = (replicas, expert_replicas) if run.sharding != "none" else (1, 1)
    found = {"host of a step": VALUES["HOST_STEP"]}
    if run.frozen:
        return found, 0.0
    found["update"] = machine.moving_seconds((dense / share + experts / expert_share) * VALUES["UPDATE_BYTES"])
    if replicas == 1:
        return found, 0.0
    reduce = gather = 0.0
    stages, block = run.pipeline if run.pipeline_inner else 1, run.tensor * run.context
    near = [rank for rank in range(0, block * stages * run.data, run.tensor) if rank // block % stages == 0]
    far = range(0, expert_replicas * run.expert * run.expert_tensor * stages, run.expert * run.expert_tensor * stages)
    for elements, group in ((dense, near), (experts, far)):
        sent = elements * (len(group) - 1) // len(group)
        reduce += machine.collective_seconds("ReduceScatter", sent * run.gradient, group)
        gather += machine.collective_seconds("AllGather", sent * run.parameter, group)
    if run.sharding == "parameters":
        gather *= 2 * run.micro_batches
    if run.sharding == "none":
        gather = reduce
    one -= cards if max(len(machine.hosts(group)) for group in (near, far)) > 1 else 0.0
    hidden = one * 2 / 3 if run.overlapped_gradients else 0.0
    found["data"] = max(VALUES["EXPOSED"] * reduce, reduce - hidden)
    hidden = one / 3 * (run.micro_batches if run.sharding == "parameters" else 1) if run.overlapped_parameters else 0.0
    found["data"] += max(VALUES["EXPOSED"] * gather, gather - hidden)
    return found, reduce + gather

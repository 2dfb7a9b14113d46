"""Checks of redistribution plans that use none of the planner's own arithmetic: pairs of layouts, the least
bytes that a redistribution can move, and plans executed on simulated ranks in lock-step."""

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.ir.layout import Layout, common_mesh, on_mesh
from mspc.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AlltoAll,
    Collective,
    LocalSlice,
    NeighborExchange,
    ReduceScatter,
)
from mspc.ops.collective.exchange import Exchange
from mspc.passes.lib.redistribution import RedistributionPlan, RedistributionStep
from tests.graphs import Builder, Graph, Node, Op, Parameter, RankPlacement, TensorType, Value, dtype_of

Pair = tuple[Layout, Layout, tuple[int, ...]]
RANKS = (4, 6, 8, 12, 16, 64)
_COMBINE: dict[str, Any] = {
    "sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
    "all": np.logical_and, "any": np.logical_or,
}  # fmt: skip


def strategies(ranks: int, dims: int) -> list[tuple[int, ...]]:
    """All tuple strategies whose number of slices divides `ranks`."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [s for s in itertools.product(divisors, repeat=dims) if ranks % math.prod(s) == 0]


def strategy_pairs(ranks: tuple[int, ...] = RANKS) -> Iterator[Pair]:
    """All pairs of tuple strategies of 2-D and 3-D tensors."""
    for n in ranks:
        for dims in (2, 3):
            layouts = [Layout.from_strategy(s, n) for s in strategies(n, dims)]
            shape = tuple(n * (d + 1) for d in range(dims))
            for source, target in itertools.product(layouts, repeat=2):
                yield source, target, shape


def random_layout(generator: random.Random, ranks: int, dims: int, partial: bool = False) -> Layout:
    """Any mesh of `ranks`, its axes dealt to the dimensions, to replicas and, if asked, to parts."""
    mesh: list[int] = []
    left = ranks
    while left > 1:
        mesh.append(generator.choice([n for n in range(2, left + 1) if left % n == 0]))
        left //= mesh[-1]
    axes = list(range(len(mesh)))
    generator.shuffle(axes)
    cuts: list[list[int]] = [[] for _ in range(dims)]
    parts: list[int] = []
    for a in axes:
        place = generator.randrange(dims + 1 + partial)
        if place < dims:
            cuts[place].append(a)
        elif place > dims:
            parts.append(a)
    return Layout.of(mesh, cuts, parts, generator.choice(["sum", "mean", "max", "min", "prod", "all", "any"]))


def random_pairs(seed: int, count: int, ranks: tuple[int, ...] = RANKS, partial: bool = False) -> Iterator[Pair]:
    """Seeded random pairs of layouts; with `partial` the source may hold parts and the target keep some of
    them."""
    generator = random.Random(seed)
    for _ in range(count):
        n, dims = generator.choice(ranks), generator.choice((1, 2, 3) if partial else (2, 3))
        source = random_layout(generator, n, dims, partial)
        target = random_layout(generator, n, dims)
        if partial and source.partial and generator.random() < 0.3:
            target = _keeping_parts(generator, source)
        yield source, target, tuple(n * (d + 1) for d in range(dims))


def _keeping_parts(generator: random.Random, source: Layout) -> Layout:
    """A target on the source's mesh that stays partial over some of its axes."""
    kept = [a for a in source.partial if generator.random() < 0.6]
    axes = [a for a in range(len(source.mesh)) if a not in kept]
    generator.shuffle(axes)
    cuts: list[list[int]] = [[] for _ in source.dims]
    for a in axes:
        place = generator.randrange(len(cuts) + 1)
        if place < len(cuts):
            cuts[place].append(a)
    return Layout.of(source.mesh, cuts, kept, source.reduction)


def boxes(layout: Layout, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """(first elements, last elements + 1) of every rank's slice, two arrays [ranks, dimensions]."""
    cuts = [layout.slices_for(rank, shape) for rank in range(layout.ranks)]
    return np.array([[c.start for c in cut] for cut in cuts]), np.array([[c.stop for c in cut] for cut in cuts])


def missing(source: Layout, target: Layout, shape: tuple[int, ...]) -> Any:
    """Per rank the elements of its new slice that it does not hold: no plan can receive less."""
    (old, old_end), (new, new_end) = boxes(source, shape), boxes(target, shape)
    held = np.clip(np.minimum(old_end, new_end) - np.maximum(old, new), 0, None).prod(1)
    return (new_end - new).prod(1) - held


def holders(source: Layout, target: Layout, shape: tuple[int, ...]) -> Any:
    """Per rank the number of ranks that hold an element that it misses."""
    (old, old_end), (new, new_end) = boxes(source, shape), boxes(target, shape)
    common = np.clip(np.minimum(old_end, new_end[:, None]) - np.maximum(old, new[:, None]), 0, None).prod(2) > 0
    other = (old[:, None] != old[None]).any(2)
    return (common & other).sum(1)


def one_collective_suffices(source: Layout, target: Layout, shape: tuple[int, ...]) -> bool:
    """Whether slices and then one AllGather or AlltoAll move exactly what is missing, found by trying all
    of them."""
    mesh = common_mesh(source.mesh, target.mesh)
    if mesh is None:
        return False
    new = on_mesh(target, mesh)[0]
    least = float(missing(source, target, shape).mean())
    size = math.prod(target.local_shape(shape))
    unused = [a for a in range(len(mesh)) if all(a not in axes for axes in new)]
    for d in range(len(new)):
        for count in range(1, len(unused) + 1):
            for axes in itertools.permutations(unused, count):
                ranks = math.prod(mesh[a] for a in axes)
                if size % ranks == 0 and size // ranks * (ranks - 1) == least:
                    before = Layout.of(mesh, [cut + axes if i == d else cut for i, cut in enumerate(new)])
                    if before.divides(shape) and not missing(source, before, shape).any():
                        return True
        for count in range(1, len(new[d]) + 1):
            moved = new[d][-count:]
            ranks = math.prod(mesh[a] for a in moved)
            if size * (ranks - 1) / ranks != least:
                continue
            for other in range(len(new)):
                cuts = [cut[:-count] if i == d else cut + moved if i == other else cut for i, cut in enumerate(new)]
                before = Layout.of(mesh, cuts)
                if other != d and before.divides(shape) and not missing(source, before, shape).any():
                    return True
    return False


@dataclass
class Outcome:
    """The record of an execution: per rank the bytes sent (as rings send them), the messages received, the largest
    array."""

    arrays: list[Any]
    sent: list[float]
    received: list[int] = field(default_factory=list)
    largest: int = 0


def parts_of(source: Layout, shape: tuple[int, ...], seed: int = 0) -> Any:
    """The parts of a tensor, [parts, *shape]; small integers, so that every way to combine them is exact."""
    count = source.size_of(source.partial)
    if count == 1:
        return np.arange(math.prod(shape), dtype=np.float64).reshape(1, *shape)
    generator = np.random.default_rng(seed)
    if source.reduction in ("all", "any"):
        return generator.random((count, *shape)) < 0.5
    high = 3 if source.reduction == "prod" else 100
    return generator.integers(1, high, (count, *shape)).astype(np.float64)


def expected(source: Layout, target: Layout, parts: Any) -> list[Any]:
    """Every rank's slice under `target`, by reducing whole arrays."""
    mesh = common_mesh(source.mesh, target.mesh)
    if mesh is None:
        mesh, old, kept = source.mesh, source.partial, ()
        if target.partial:
            return [parts[_part(target, r)][target.slices_for(r, parts.shape[1:])] for r in range(target.ranks)]
    else:
        old, kept = on_mesh(source, mesh)[1], on_mesh(target, mesh)[1]
    whole = parts.reshape(*(mesh[a] for a in old), *parts.shape[1:])
    fold = tuple(i for i, a in enumerate(old) if a not in kept)
    if fold:
        total = _COMBINE[source.reduction].reduce(whole, axis=fold)
        whole = total / math.prod(whole.shape[i] for i in fold) if source.reduction == "mean" else total
    whole = whole.reshape(-1, *parts.shape[1:])
    return [whole[_part(target, r)][target.slices_for(r, parts.shape[1:])] for r in range(target.ranks)]


def _part(layout: Layout, rank: int) -> int:
    place = layout.coordinates(rank)
    index = 0
    for a in layout.partial:
        index = index * layout.mesh[a] + place[a]
    return index


def execute(found: RedistributionPlan, source: Layout, target: Layout, parts: Any) -> Outcome:
    """Run a plan on all ranks with the operators' own localised forms; ring bytes are counted as they
    happen."""
    shape = parts.shape[1:]
    ranks = range(source.ranks)
    arrays = [parts[_part(source, r)][source.slices_for(r, shape)] for r in ranks]
    outcome = Outcome(arrays, [0.0] * len(ranks), [0] * len(ranks))
    layout = source
    for step in found.steps:
        outcome.arrays = _run_step(step, layout, outcome, shape)
        layout = step.layout
        for array in outcome.arrays:
            assert array.shape == layout.local_shape(shape), f"{step.op} gave {array.shape}"
            outcome.largest = max(outcome.largest, array.size)
        if step.scale != 1.0:
            outcome.arrays = [array * step.scale for array in outcome.arrays]
    assert layout == target
    return outcome


def _run_step(step: RedistributionStep, layout: Layout, outcome: Outcome, shape: tuple[int, ...]) -> list[Any]:
    ranks = range(layout.ranks)
    dtype = dtype_of(outcome.arrays[0].dtype)
    type = TensorType(dtype, shape)
    places = [RankPlacement(r, (type,), (layout,), (type,), (step.layout,)) for r in ranks]
    if isinstance(step.op, Exchange):
        return _run_exchange(step.op, places, outcome)
    ops = [step.op.localize(place) for place in places]
    if isinstance(step.op, LocalSlice):
        return [_kernel(op, array) for op, array in zip(ops, outcome.arrays, strict=True)]
    results: list[Any] = []
    for rank, op in enumerate(ops):
        assert isinstance(op, Collective)
        assert rank in op.ranks
        brought = [outcome.arrays[r] for r in op.ranks]
        results.append(_collective(op, rank, brought))
        local = op.infer(TensorType(dtype, outcome.arrays[rank].shape))
        assert isinstance(local, TensorType)
        assert local.shape == results[-1].shape
        size, nbytes = len(op.ranks), outcome.arrays[rank].nbytes
        times = {"AllReduce": 2 * (size - 1) / size, "AllGather": size - 1}.get(op.name, (size - 1) / size)
        outcome.sent[rank] += times * nbytes
        outcome.received[rank] += (2 if op.name == "AllReduce" else 1) * (size - 1)
    return results


def _collective(op: Op, rank: int, brought: list[Any]) -> Any:
    """The result of one rank by the definition of the collective, from what the group's ranks bring, in its
    order."""
    if isinstance(op, AllReduce):
        assert op.ranks == tuple(sorted(op.ranks))
        return _COMBINE[op.op].reduce(np.stack(brought), axis=0).astype(brought[0].dtype)
    if isinstance(op, AllGather):
        return np.concatenate(brought, op.axis)
    place = op.ranks.index(rank)  # type: ignore[attr-defined]  # all collectives have it
    if isinstance(op, ReduceScatter):
        total = _COMBINE[op.op].reduce(np.stack(brought), axis=0).astype(brought[0].dtype)
        return np.split(total, len(brought), op.axis)[place]
    assert isinstance(op, AlltoAll)
    pieces = [np.split(array, op.split_count, op.split_dim)[place] for array in brought]
    return np.concatenate(pieces, op.concat_dim)


def _kernel(op: Any, *arrays: Any) -> Any:
    return op.run(SimpleNamespace(xp=np, comm=None), *arrays)


def _run_exchange(op: Exchange, places: list[RankPlacement], outcome: Outcome) -> list[Any]:
    programs = [_expanded(op, place, array) for place, array in zip(places, outcome.arrays, strict=True)]
    mail: dict[tuple[int, int], list[Any]] = defaultdict(list)
    values: list[dict[Value, Any]] = []
    for rank, (graph, _) in enumerate(programs):
        known: dict[Value, Any] = {graph.parameters[0]: outcome.arrays[rank]}
        values.append(known)
        for node in graph.nodes:
            if isinstance(node.op, NeighborExchange):
                assert rank not in (*node.op.send_rank_ids, *node.op.recv_rank_ids)
                for to, value in zip(node.op.send_rank_ids, node.inputs, strict=True):
                    mail[rank, to].append(known[value])
                    outcome.sent[rank] += known[value].nbytes
            elif all(v in known for v in node.inputs):
                known[node] = _kernel(node.op, *(known[v] for v in node.inputs))
    results: list[Any] = []
    for rank, (graph, result) in enumerate(programs):
        known = values[rank]
        for node in graph.nodes:
            if isinstance(node.op, NeighborExchange):
                got = [mail[r, rank].pop() for r in node.op.recv_rank_ids]
                assert [g.shape for g in got] == list(node.op.recv_shapes)
                known[node] = tuple(got)
                outcome.received[rank] += len(got)
            elif node not in known:
                known[node] = _kernel(node.op, *(known[v] for v in node.inputs))
        results.append(known[result])
    assert not any(mail.values()), "a piece was sent that nobody received"
    return results


def _expanded(op: Exchange, place: RankPlacement, array: Any) -> tuple[Graph, Value]:
    graph = Graph("rank")
    graph.parameters.append(Parameter("x", TensorType(dtype_of(array.dtype), array.shape)))
    result = op.expand(Builder(graph), place, graph.parameters)
    assert result is not None
    graph.verify()
    assert sum(isinstance(n.op, NeighborExchange) for n in graph.nodes) <= 1
    assert all(isinstance(n, Node) for n in graph.nodes)
    return graph, result

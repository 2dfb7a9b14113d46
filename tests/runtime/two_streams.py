"""Runs a rank's graph in its planned memory, on two streams that interleave in any order that their events allow.

A value that is not yet written is NaN, and so is one that a collective in flight will write; its operands are read as
late as they can be. So a plan that lets two values share memory too early gives other numbers for some order. Copies of
parameters that are kept are made in the first step, ahead of it; later ones find what the updates wrote.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import Exchanging
from mspc.runtime.memory import Allocation, MemoryPlan, side_stream
from tests.graphs import Constant, Graph, Node, Op, Parameter, TensorType, Value, element_types

Array = Any


class Alone(Exchanging):
    """Collectives without partners: each gives something of the right shape that depends on all of its operand."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, array: Array, op: str, ranks: tuple[int, ...]) -> Array:
        return array * 1.25 if array.dtype.kind == "f" else array + 1

    def all_gather(self, array: Array, ranks: tuple[int, ...], axis: int = 0) -> Array:
        return np.concatenate([array * (1 + i / 8) for i in range(len(ranks))], axis)

    def reduce_scatter(self, array: Array, op: str, ranks: tuple[int, ...], axis: int = 0) -> Array:
        return np.array(np.split(array, len(ranks), axis)[ranks.index(self.rank)]) * 1.5

    def all_to_all(self, array: Array, ranks: tuple[int, ...], split_dim: int, concat_dim: int) -> Array:
        return np.concatenate(np.split(array, len(ranks), split_dim)[::-1], concat_dim)

    def exchange_into(self, sends: Any, receives: Any) -> None:
        total = sum(float(np.sum(array)) for _, array in sends)
        for source, array in receives:
            array[...] = np.tanh(total) + source


class TwoStreams:
    """One step of `graph` as `plan` places it; `values` are its parameters' arrays by name, which it updates. `before`:
    the step before it."""

    def __init__(
        self, graph: Graph, plan: MemoryPlan, values: Mapping[str, Array], comm: Any, seed: int,
        before: TwoStreams | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.plan, self.values = graph, plan, values
        self.backend = NumPyBackend(comm, step=1)
        self.random = random.Random(seed)
        self.arena = np.full(plan.arena, 0xFF, np.uint8)
        kept = plan.shadow_weights.nodes()
        if before is None:
            for node in graph.nodes:
                if node in kept:
                    self._launch(node)
        copies = [(p.offset, p.offset + p.nbytes) for node in plan.shadow_weights.copies for p in plan.places[node]]
        old, self.arena = self.arena if before is None else before.arena, np.full(plan.arena, 0xFF, np.uint8)
        for begin, end in copies:
            self.arena[begin:end] = old[begin:end]
        order = [(i, n) for i, n in enumerate(graph.nodes) if n in plan.copied or not n.op.is_view]
        order = [(i, n) for i, n in order if n not in kept]
        names = dict.fromkeys(side_stream(n) for _, n in order)
        self.streams = {name: [(i, n) for i, n in order if side_stream(n) == name] for name in names}
        self.over: set[Node] = set()
        self.flying: dict[str, tuple[Node, dict[int, Array]]] = {}

    def run(self) -> list[Array]:
        """The graph's results after one step in a random order."""
        left = {name: nodes[::-1] for name, nodes in self.streams.items()}
        main = left.setdefault("", [])
        eager = self.random.random()  # how far one stream tends to run ahead of the others
        while any(left.values()) or self.flying:
            choices: list[str] = []
            for name, nodes in left.items():
                if name in self.flying:
                    choices.append(f"finish {name}")
                elif nodes and self.over.issuperset(self.plan.waits.get(nodes[-1][1], ())):
                    if not name or not main or main[-1][0] > nodes[-1][0]:
                        choices.append(f"start {name}")
            assert choices, "the streams wait for each other"
            place = 0 if self.random.random() < eager else self.random.randrange(len(choices))
            what, _, name = choices[place].partition(" ")
            if what == "finish":
                self._finish(name)
            elif name:
                self._start(name, left[name].pop()[1])
            else:
                self._launch(main.pop()[1])
        return [np.array(self._read(value)) for value in self.graph.results]

    def _launch(self, node: Node) -> None:
        source = self.plan.copied.get(node)
        result: Any = None
        if source is None or not node.op.is_view:
            assert isinstance(node.op, Op)
            mutates = getattr(node.op, "mutates", ())
            inputs = [self._read(v) if i in mutates else _copy(self._read(v)) for i, v in enumerate(node.inputs)]
            result = node.op.run(self.backend, *inputs)
            self._write_copies(node)
        if source is not None:
            types = element_types(node.type)
            result = tuple(np.array(self._view(p, t)) for p, t in zip(source, types, strict=True))
        self._write(node, result)

    def _write_copies(self, update: Node) -> None:
        for node, pieces in self.plan.shadow_weights.copies.items():
            for piece in pieces:
                if piece.update is update:
                    value = self.values[piece.parameter.name].reshape(-1, piece.columns)
                    at = np.arange(len(value))[:, None] * piece.pitch + np.arange(piece.columns) + piece.begin
                    self._read(node).reshape(-1)[at] = value.astype(node.tensor_type.dtype.numpy)

    def _start(self, name: str, node: Node) -> None:
        """A collective may write to its results from now on; those in place of operands are gone at once."""
        operands = {i: _copy(self._read(v)) for i, v in enumerate(node.inputs)}
        places = self.plan.places
        for target in places[node]:
            if target.kind == "arena":
                self.arena[target.offset : target.offset + target.nbytes] = 0xFF
        in_place = {i: a for i, a in operands.items() if places[node.inputs[i]][0] in places[node]}
        self.flying[name] = node, in_place

    def _finish(self, name: str) -> None:
        """A collective reads its operands as late as now, and writes."""
        node, in_place = self.flying.pop(name)
        for target in self.plan.places[node]:
            if target.kind == "arena":
                held = self.arena[target.offset : target.offset + target.nbytes]
                assert (held == 0xFF).all(), f"{node} shares its result's memory with what ran beside it"
        inputs = [in_place[i] if i in in_place else self._read(v) for i, v in enumerate(node.inputs)]
        assert isinstance(node.op, Op)
        self._write(node, node.op.kernel(self.backend)(*inputs))
        self.over.add(node)

    def _view(self, place: Allocation, type: TensorType) -> Array:
        if place.kind == "kept":
            kept = place.value
            array = kept.value if isinstance(kept, Constant) else self.values[kept.name]  # type: ignore[union-attr]
            return array.reshape(type.shape)
        memory = self.arena[place.offset : place.offset + place.nbytes]
        return memory.view(type.dtype.numpy).reshape(type.shape)

    def _read(self, value: Value) -> Any:
        types = element_types(value.type)
        arrays = tuple(self._view(p, t) for p, t in zip(self.plan.places[value], types, strict=True))
        return arrays[0] if isinstance(value.type, TensorType) else arrays

    def _write(self, node: Node, result: Any) -> None:
        types = element_types(node.type)
        results = (result,) if isinstance(node.type, TensorType) and not isinstance(result, tuple) else result
        for place, type, array in zip(self.plan.places[node], types, results, strict=True):
            target = self._view(place, type)
            if place.kind == "arena":
                target[...] = array


def _copy(operand: Any) -> Any:
    return tuple(map(np.array, operand)) if isinstance(operand, tuple) else np.array(operand)


def check_places(graph: Graph, plan: MemoryPlan) -> None:
    """The assumptions that a launch may make of its operands' and results' places, node by node."""
    for node in graph.nodes:
        if node.op.is_view and node not in plan.copied:
            continue
        mine = plan.places[node]
        for i, place in enumerate(mine):
            assert not any(_overlap(place, other) for other in mine[:i]), node
            for value in node.inputs:
                for other in plan.places[value]:
                    if _overlap(place, other) and place.kind == "arena":
                        assert (place.offset, place.nbytes) == (other.offset, other.nbytes), node
                        assert getattr(node.op, "in_place", False) or node.op.name == "AllReduce", node
            assert place.kind == "arena" or isinstance(place.value, Parameter), node
    for node, block in plan.buckets.items():
        members = plan.places[node]
        assert members == tuple(plan.places[v][0] for v in node.inputs)
        assert members[0].offset == block.offset
        assert block.offset + block.nbytes == members[-1].offset + members[-1].nbytes
        for left, right in itertools.pairwise(members):
            assert 0 <= right.offset - left.offset - left.nbytes < 32


def _overlap(left: Allocation, right: Allocation) -> bool:
    if left.kind == "kept" or right.kind == "kept":
        return False
    return left.offset < right.offset + right.nbytes and right.offset < left.offset + left.nbytes

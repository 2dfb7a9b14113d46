"""Compares some steps of a network on one device with those of its ranks, and finds the first difference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.control.regions import If, Loop, Scan, body_of
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.passes.base import PassManager, find_pass
from mspc.passes.lib.choices import release_constraints
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.data import local_slice
from mspc.verify.difference import ComparedValue
from mspc.verify.finite_differences import Directions, Doubled, GradientQuery, directions, requests
from mspc.verify.global_batch import (
    BatchComparison,
    GlobalBatchNetwork,
    compare_batches,
    drawing_at_places,
    name_by_script,
    name_gradients,
    rows_of_draws,
    rows_on_ranks,
)
from mspc.verify.judged_collectives import collectives
from mspc.verify.made_inputs import MadeInput
from mspc.verify.many_ranks import ManyRanks, MpiRanks
from mspc.verify.one_device import OneDevice, Values, kernel_over_places, pokes
from mspc.verify.random_numbers import wrong_random_numbers
from mspc.verify.same_values import MARK, Comparison, FirstOperator

Array = Any
PASSES = ("mask_bounds", "decompose", "grad")
ROUNDS = "quantize_products"
"""A pass that changes the numbers, as the script asks: one device rounds as ranks do."""


@dataclass(frozen=True)
class PlainNetwork:
    """The network that ranks are compared with. doubled: see `plain_network`. weights: first values, by name."""

    graph: Graph
    doubled: Doubled
    weights: dict[str, Array]


def plain_network(graph: Graph) -> tuple[Graph, Doubled]:
    """Return the reference, and the Float64 graph by which its gradients are judged. graph: of the front end; it is
    changed."""
    graph, asked = _differentiated(graph)
    doubled = Doubled.of(graph, asked)
    return _named(graph), doubled


def plain_graph(graph: Graph) -> Graph:
    """Return the reference alone; see `plain_network`."""
    return _named(_differentiated(graph)[0])


def alone(graph: Graph) -> dict[str, Any]:
    """Return the header of a network on one device, which multiplies in Float8 if ranks do."""
    return {"mode": "stand_alone", "ranks": 1} | {k: v for k, v in graph.attrs.items() if k.startswith("fp8_")}


def _differentiated(graph: Graph) -> tuple[Graph, list[GradientQuery]]:
    graph.attrs = alone(graph)
    for parameter in graph.parameters:
        parameter.layout = parameter.global_type = None
    graph.clear_strategies()
    manager = PassManager()
    mask_bounds, decompose, grad = map(find_pass, PASSES)
    graph, _ = manager.apply(mask_bounds, graph)
    graph, _ = manager.apply(decompose, graph)
    name_by_script(graph)
    asked = requests(graph)
    graph, _ = manager.apply(grad, graph)
    release_constraints(graph)
    return graph, asked


def _named(graph: Graph) -> Graph:
    graph, _ = PassManager().apply(find_pass(ROUNDS), graph)
    name_gradients(graph)
    _read_elements(graph)
    _drop_dead(graph)
    return graph


def _read_elements(graph: Graph) -> None:
    """Let readers of an element of a tuple that the graph makes read the element itself: sums over ranks replace
    gradients in the operands of updates, so these must be operands there."""
    elements: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [elements.get(value, value) for value in node.inputs]
        source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
        if isinstance(node.op, TupleGetItem) and isinstance(source, Node) and isinstance(source.op, MakeTuple):
            elements[node] = source.inputs[node.op.index]
    graph.results = [elements.get(value, value) for value in graph.results]
    graph.nodes = [node for node in graph.nodes if node not in elements]


def _drop_dead(graph: Graph) -> None:
    """Remove nodes without effects that no result needs, and then constants that nothing reads: a compiled program,
    whose first values are used here, does not have them."""
    live = set(graph.results)
    for node in reversed(graph.nodes):
        if node in live or node.op.has_side_effect:
            live.update((node, *node.inputs))
    graph.nodes = [node for node in graph.nodes if node in live]
    graph.parameters = [p for p in graph.parameters if p.kind != "constant" or p in live]


# Compares one device that runs the ranks' network with the reference, which no pass but `grad` has changed.
#
# The ranks are compared operator by operator with one device that runs the same passes as they do. An error in such a
# pass is on both sides; it shows here.


def compare_with_reference(
    reference: OneDevice, wanted: Sequence[Sequence[Values]], passed: Graph, expected: Sequence[Sequence[Values]]
) -> list[ComparedValue]:
    """Return the rows of all values that differ. reference: one device with the reference. wanted: the values that it
    computes. passed, expected: the same of one device after the passes."""
    noise = cache(partial(reference.noise, wanted))
    own = len(reference.feeds) > 1
    comparison = Comparison(reference.graph, passed, 1, reference.weights, wanted, noise, own, reference.mark)
    rows = comparison.results(expected) + comparison.parameters(expected)
    return [replace(row, kind=f"reference {row.kind}") for row in rows if not row.same]


STEPS = 3
"""Steps that are compared: stale values and random numbers may be wrong from the second on."""

CAUTIONS = 3
"""How careful inputs are: with ignored labels and hidden rows, without these, and then positive ones alone."""


@dataclass
class Verified:
    """The result of a comparison. first: the first operator that differs. note: more about a difference. directions:
    the comparison of gradients with finite differences. batches: in data parallel mode, how all ranks compare with one
    device on the global batch. not_finite: results and parameters that are not finite on one device. untaken: branches
    that no step takes; see `untaken`."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    first: FirstOperator | None = None
    inputs: dict[str, MadeInput] = field(default_factory=dict[str, MadeInput])
    note: str = ""
    directions: Directions = field(default_factory=Directions)
    batches: BatchComparison | None = None
    not_finite: list[str] = field(default_factory=list[str])
    untaken: list[tuple[Node, str]] = field(default_factory=list[tuple[Node, str]])
    located: tuple[str, ...] = ()
    """Sentences of the proof of `--scale` on the first wrong value."""

    def add(self, rows: Sequence[ComparedValue], note: str) -> None:
        """Add rows that differ. note: with the name of the first at "{}"."""
        self.rows += rows
        self.note = self.note or (note.format(rows[0].name) if rows else "")


@dataclass(frozen=True)
class VerifiedProgram:
    """The two programs to compare.

    one, many: the graph of one device and that of all ranks before slicing, both after all passes that ranks share.
    ranks: of all stages. reference: the network without these passes, on one device. weights: first values. made: makes
    inputs, given how careful they are (`CAUTIONS`). layouts: which slices of its inputs a rank has if it has rows of
    its own; global_batch: the network on the batch of all ranks then. stages: how many there are.
    """

    one: Graph
    many: Graph
    ranks: int
    reference: PlainNetwork
    weights: dict[str, Array]
    made: Callable[[int], dict[str, MadeInput]]
    graph_of: Callable[[int], Graph]
    plain_of: Callable[[int], Graph]
    layouts: list[Layout] = field(default_factory=list[Layout])
    global_batch: GlobalBatchNetwork = field(default_factory=lambda: GlobalBatchNetwork(None))
    stages: int = 1


def verified(program: VerifiedProgram, seed: int, mpi: bool = False) -> Verified:
    """Return the steps of one device beside those of the ranks. mpi: they run under mpirun, not in this process. Raise
    NodeFailure if a kernel failed."""
    device, made, expected = one_device(program, program.one)
    kind = MpiRanks if mpi else ManyRanks
    ranks = kind(program.ranks, program.graph_of, program.plain_of, program.weights, _steps(made))
    noise = cache(partial(device.noise, expected))
    own = bool(program.layouts)
    comparison = Comparison(
        program.one, program.many, program.ranks // program.stages, program.weights, expected, noise, own, MARK,
        program.stages,
    )  # fmt: skip
    found = _compared(comparison, device, ranks)
    found.inputs = made
    found.not_finite = _not_finite(expected)
    _compare_reference(program, found, device, expected, ranks)
    wrong = ranks.wrong() if isinstance(ranks, MpiRanks) else collectives(program.ranks, program.plain_of)
    found.add(wrong, "on numbers made for it a collective gives others than NumPy")
    wrong = wrong_random_numbers(program.reference.graph)
    found.add(wrong, "the random numbers of {} are wrong, on all devices alike")
    found.directions = _finite_differences(program, device, seed)
    found.add(found.directions.rows, "by finite differences the gradient of {} is another, on one device too")
    return found


def _finite_differences(program: VerifiedProgram, device: OneDevice, seed: int) -> Directions:
    """Compare gradients with finite differences for the inputs of the first step, and for those of all steps if there
    are branches, of which a step takes one."""
    doubled, found = program.reference.doubled, Directions()
    names = [p.name for p in doubled.graph.parameters if p.kind == "input"]
    branches = any(isinstance(node.op, If) for node in doubled.graph.all_nodes())
    for fed in device.feeds[0] if branches else device.feeds[0][:1]:
        found.add(directions(doubled, program.weights | dict(zip(names, fed, strict=True)), seed))
    return found


def _compare_reference(
    program: VerifiedProgram, found: Verified, device: OneDevice, expected: list[list[Values]], ranks: ManyRanks
) -> None:
    """Compare one device that ran all passes with the reference, and in data parallel mode the ranks with one device
    that has the global batch."""
    reference = replace(device, graph=program.reference.graph, kernels=_kernels(program, program.reference.graph))
    taken = set[Graph]()
    wanted = replace(reference, taken=taken).run()
    found.untaken = untaken(reference.graph, taken)
    loops = (node.op for node in reference.graph.nodes if isinstance(node.op, Scan))
    unrolled = program.stages > 1 and not any(op.micro_batches for op in loops)
    written = "from the network as it is written, before any pass changes it"
    how = "with the loop over micro-batches unrolled" if unrolled else written
    rows = compare_with_reference(reference, wanted, device.graph, expected)
    found.add(rows, f"one device computes other values {how}")
    if program.layouts:
        feeds, mean = _steps(found.inputs), device.mean
        found.batches = compare_batches(program.global_batch, feeds, reference, wanted, ranks.executed(), mean)
        found.rows += found.batches.rows


def untaken(graph: Graph, taken: Collection[Graph]) -> list[tuple[Node, str]]:
    """Return every branch that does not run though its choice is reached, as its choice and "true" or "false", and
    every loop that is reached and has no iteration, with "". taken: the graphs of the branches and of the bodies of
    loops that run."""
    found: list[tuple[Node, str]] = []
    for node in graph.nodes:
        for number, region in enumerate(node.regions):
            chosen = isinstance(node.op, If) or (isinstance(node.op, Loop) and region is body_of(node))
            if not chosen or region in taken:
                found += untaken(region, taken)
            elif region.nodes:
                found.append((node, ("true", "false")[number] if isinstance(node.op, If) else ""))
    return found


def one_device(program: VerifiedProgram, graph: Graph) -> tuple[OneDevice, dict[str, MadeInput], list[list[Values]]]:
    """Return one device that runs a graph of the program, its inputs and all values that it computes. Inputs have both
    signs, ignored labels and hidden rows, unless it computes no numbers from these."""
    mean, kernels = bool(program.many.attrs.get("gradients_mean")), _kernels(program, graph)
    tried: list[tuple[OneDevice, dict[str, MadeInput], list[list[Values]]]] = []
    for caution in range(CAUTIONS):
        made = program.made(caution)
        device = OneDevice(graph, program.weights, _feeds(program, made), MARK, mean, kernels=kernels)
        tried.append((device, made, device.run()))
        if not _not_finite(tried[-1][2]):
            return tried[-1]
    return tried[0]


Kernels = Callable[[Node, NumPyBackend], Callable[..., Any] | None]


def _kernels(program: VerifiedProgram, graph: Graph) -> Kernels:
    """Return the kernels of operators that compute or draw over the rows of all ranks, if ranks have rows of their
    own."""
    if not program.layouts:
        return kernel_over_places
    rows = rows_of_draws(graph, [any(f.dims) for f in program.layouts], program.global_batch.graph)
    if graph is program.one:
        rows |= rows_on_ranks(graph, program.many, MARK)
    drawing = drawing_at_places(rows)
    return lambda node, backend: kernel_over_places(node, backend) or drawing(node, backend)


def _not_finite(steps: list[list[Values]]) -> list[str]:
    found: dict[str, None] = {}
    for key, value in ((k, v) for places in steps for place in places for k, v in place.items()):
        named = isinstance(key, str) or (isinstance(key, tuple) and key[0] == "result")
        if named and value.dtype.kind in "fV" and not np.isfinite(value.astype(np.float64)).all():
            found[key if isinstance(key, str) else f"output {key[1]}"] = None
    return list(found)


def _steps(made: dict[str, MadeInput]) -> list[list[Array]]:
    return [[m.arrays[step] for m in made.values()] for step in range(STEPS)]


def _feeds(program: VerifiedProgram, made: dict[str, MadeInput]) -> list[list[list[Array]]]:
    """Return, for every place and step, the inputs of one device: global, or those of each rank."""
    if not program.layouts:
        return [_steps(made)]
    batches = [list(zip(step, program.layouts, strict=True)) for step in _steps(made)]
    return [[[local_slice(a, layout, rank) for a, layout in step] for step in batches] for rank in range(program.ranks)]


def _compared(comparison: Comparison, device: OneDevice, ranks: ManyRanks) -> Verified:
    """Return the rows of all steps, and the first operator that differs in the first of them in which anything does."""
    gradients, first = comparison.operators(ranks.observed(MARK, 1)[0], 0)
    executed = ranks.executed()
    found = Verified(comparison.results(executed) + gradients + comparison.parameters(executed), first)
    if any(not row.same for row in found.rows) and found.first is None:
        _search(found, comparison, device, ranks, executed)
    apart = {row.name for row in found.rows if row.kind == "parameter" and not row.same}
    wrong = [row for row in comparison.gathered(executed) if row.name not in apart]
    found.add(wrong, "the slices of {} are right, and wrong after they are gathered")
    for poke in pokes(comparison.many, MARK):
        shown = replace(comparison, expected=device.run(poke), noise=comparison.noise)
        seen = ranks.observed("", 1, poke)
        wrong = [row for row in shown.results(seen) + shown.parameters(seen) if not row.same]
        found.add(wrong, "they differ if a gradient overflows on one rank")
    return found


def _search(
    found: Verified, comparison: Comparison, device: OneDevice, ranks: ManyRanks, executed: list[list[Any]]
) -> None:
    """Look for the first operator that differs if none does in the first step."""
    step = next(s for s in range(STEPS) if not _alike(comparison, executed, s))
    marked = replace(device, marked=step)
    expected = marked.run()
    shown = replace(comparison, expected=expected, noise=cache(partial(marked.noise, expected)))
    observed = ranks.observed(MARK, step + 1)
    rows, found.first = shown.operators(observed[step], step)
    alike = all(row.same for row in rows) and _alike(comparison, observed, step)
    if found.first is None and alike:
        found.note = f"operator by operator step {step + 1} is the same: they differ in fusion or shared memory"
    elif step:
        found.note = f"step {step + 1} is the first that differs"


def _alike(comparison: Comparison, found: list[list[Any]], step: int) -> bool:
    upto = found[: step + 1]
    return all(row.same for row in comparison.results(upto) + comparison.parameters(upto))

"""Compares some steps of a network on one device with those of its ranks: what differs, in which step, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.slices import local_slice
from mspc.verify.collectives.compiled import collectives
from mspc.verify.collectives.mpi_job import MpiRanks
from mspc.verify.compared_operators import FirstOperator
from mspc.verify.data_parallel.global_batch import BatchComparison, GlobalBatchNetwork, compare_batches
from mspc.verify.data_parallel.random_rows import drawing_at_places, rows_of_draws
from mspc.verify.data_parallel.shared_rows import kernel_over_places
from mspc.verify.difference import ComparedValue
from mspc.verify.finite_differences import directions
from mspc.verify.float64_graph import Doubled
from mspc.verify.made_inputs import MadeInput
from mspc.verify.many_ranks import ManyRanks
from mspc.verify.marks import MARK
from mspc.verify.one_device import OneDevice, Values
from mspc.verify.overflow import pokes
from mspc.verify.parts_of_batch import compare_parts
from mspc.verify.same_values import Comparison

Array = Any
STEPS = 3
"""Steps that are compared: what goes stale, and random numbers, are wrong from the second on."""


@dataclass
class Verified:
    """What was compared. first: the first operator that differs. note: what is known of a difference beside it.
    directions: in how many gradients were compared with finite differences. batches: in data parallel mode, how all
    ranks compare with one device on the global batch. aside: in stages, why one device was not compared with parts of
    the batch one after the other."""

    rows: list[ComparedValue] = field(default_factory=list[ComparedValue])
    first: FirstOperator | None = None
    inputs: dict[str, MadeInput] = field(default_factory=dict[str, MadeInput])
    note: str = ""
    directions: int = 0
    batches: BatchComparison | None = None
    aside: str = ""


@dataclass(frozen=True)
class VerifiedProgram:
    """What is compared.

    one, many: the graph of one device and that of all ranks before slicing. ranks: of all stages. doubled: what
    gradients on one device are judged by, if it has any. weights: first values. made: makes inputs, given whether all
    of them have to be positive. layouts: which slices of its inputs a rank has where it has rows of its own;
    global_batch: the network on the batch of all then. stages: how many there are. parts: the network on one device
    that runs parts of the batch one after the other, as the script says, where `one` has a loop over micro-batches.
    """

    one: Graph
    many: Graph
    ranks: int
    doubled: Doubled | None
    weights: dict[str, Array]
    made: Callable[[bool], dict[str, MadeInput]]
    graph_of: Callable[[int], Graph]
    plain_of: Callable[[int], Graph]
    layouts: list[Layout] = field(default_factory=list[Layout])
    global_batch: GlobalBatchNetwork = field(default_factory=lambda: GlobalBatchNetwork(None))
    stages: int = 1
    parts: Graph | None = None


def verified(program: VerifiedProgram, seed: int, mpi: bool = False) -> Verified:
    """The steps of one device beside those of the ranks. mpi: they run under mpirun, not in this process.

    Raises:
        NodeFailure: a kernel failed.
    """
    device, made, expected = one_device(program)
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
    if own:
        mean = bool(program.many.attrs.get("gradients_mean"))
        found.batches = compare_batches(program.global_batch, _steps(made), device, expected, ranks.executed(), mean)
        found.rows += found.batches.rows
    if program.stages > 1 and program.parts is None:
        found.aside = "there is no script of it here, so nothing judges gradients by finite differences either"
    if program.parts is not None:
        rows, found.aside = compare_parts(program.parts, device, expected)
        found.rows += rows
        if rows:
            found.note = found.note or "one device computes other values where the loop over micro-batches is unrolled"
    wrong = ranks.wrong() if isinstance(ranks, MpiRanks) else collectives(program.ranks, program.plain_of)
    if wrong:
        found.rows += wrong
        found.note = found.note or "on numbers made for it a collective gives others than NumPy"
    if program.doubled is not None:
        names = [p.name for p in program.one.parameters if p.kind == "input"]
        values = program.weights | dict(zip(names, device.feeds[0][0], strict=True))
        rows, found.directions = directions(program.doubled, values, seed)
        found.rows += rows
        if rows and not found.note:
            found.note = f"by finite differences the gradient of {rows[0].name} is another, on one device too"
    return found


def one_device(program: VerifiedProgram) -> tuple[OneDevice, dict[str, MadeInput], list[list[Values]]]:
    """One device, its inputs (of both signs, unless it computes from these what is no number), what it computes."""
    mean = bool(program.many.attrs.get("gradients_mean"))
    global_graph = program.global_batch.graph
    drawing = drawing_at_places(rows_of_draws(program.one, [any(f.dims) for f in program.layouts], global_graph)) if (
        program.layouts
    ) else None  # fmt: skip

    def kernels(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        return kernel_over_places(node, backend) or (drawing(node, backend) if drawing is not None else None)

    tried: list[tuple[OneDevice, dict[str, MadeInput], list[list[Values]]]] = []
    for positive in (False, True):
        made = program.made(positive)
        device = OneDevice(program.one, program.weights, _feeds(program, made), MARK, mean, kernels=kernels)
        tried.append((device, made, device.run()))
        if _finite(tried[-1][2]):
            return tried[-1]
    return tried[0]


def _finite(steps: list[list[Values]]) -> bool:
    """Whether results and parameters are numbers."""
    values = [v for places in steps for place in places for key, v in place.items() if not isinstance(key, int)]
    return all(np.isfinite(v.astype(np.float64)).all() for v in values if v.dtype.kind in "fV")


def _steps(made: dict[str, MadeInput]) -> list[list[Array]]:
    return [[m.arrays[step] for m in made.values()] for step in range(STEPS)]


def _feeds(program: VerifiedProgram, made: dict[str, MadeInput]) -> list[list[list[Array]]]:
    """For every place and step the inputs of one device: global, or those of each rank."""
    if not program.layouts:
        return [_steps(made)]
    batches = [list(zip(step, program.layouts, strict=True)) for step in _steps(made)]
    return [[[local_slice(a, layout, rank) for a, layout in step] for step in batches] for rank in range(program.ranks)]


def _compared(comparison: Comparison, device: OneDevice, ranks: ManyRanks) -> Verified:
    """The rows of all steps, and the first operator that differs in the first of them in which anything does."""
    gradients, first = comparison.operators(ranks.observed(MARK, 1)[0], 0)
    executed = ranks.executed()
    found = Verified(comparison.results(executed) + gradients + comparison.parameters(executed), first)
    if any(not row.same for row in found.rows) and found.first is None:
        _search(found, comparison, device, ranks, executed)
    for poke in pokes(comparison.many, MARK):
        shown = replace(comparison, expected=device.run(poke), noise=comparison.noise)
        seen = ranks.observed("", 1, poke)
        wrong = [row for row in shown.results(seen) + shown.parameters(seen) if not row.same]
        if wrong:
            found.note = found.note or "they differ where a gradient overflows on one rank"
        found.rows += wrong
    return found


def _search(
    found: Verified, comparison: Comparison, device: OneDevice, ranks: ManyRanks, executed: list[list[Any]]
) -> None:
    """Look for the first operator that differs where none does in the first step."""
    step = next(s for s in range(STEPS) if not _alike(comparison, executed, s))
    marked = replace(device, marked=step)
    expected = marked.run()
    shown = replace(comparison, expected=expected, noise=cache(partial(marked.noise, expected)))
    observed = ranks.observed(MARK, step + 1)
    rows, found.first = shown.operators(observed[step], step)
    alike = all(row.same for row in rows) and _alike(comparison, observed, step)
    if found.first is None and alike:
        found.note = (
            f"operator by operator step {step + 1} is the same: what differs is how they are fused or share memory"
        )
    elif step:
        found.note = f"step {step + 1} is the first that differs"


def _alike(comparison: Comparison, found: list[list[Any]], step: int) -> bool:
    """Whether results and parameters are the same up to a step."""
    upto = found[: step + 1]
    return all(row.same for row in comparison.results(upto) + comparison.parameters(upto))



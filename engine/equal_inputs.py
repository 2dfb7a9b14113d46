"""Compares the inputs of ranks that train on one batch in the first steps of a graph.

With full-batch data every rank feeds the global batch and takes its own slice. If they feed different batches, as after
a shuffle without a seed, they train on a mixture of rows. Ranks that feed slices must feed the same values for the same
slice.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.agreement import gathered
from mspc.runtime.comm.interface import Communicator, fingerprint
from mspc.runtime.device_choice import EACH_ITS_OWN
from mspc.runtime.slices import slices_of

Array = Any
COMPARED_STEPS = 3
"""Steps of a graph that are compared: data that differ between ranks, as after an unseeded shuffle, differ by then."""
WHOLE = "the global batch"
"""The place of an array of which a rank takes its slice itself."""


def must_be_equal(compiled: Compiled, graph: Graph, ranks: int) -> list[Parameter] | None:
    """Return the inputs that a rank's graph reads, which are compared. Return None, on all ranks, if no ranks meet in
    the graph, as then each may run it when it likes, or if every rank trains on rows of its own."""
    mode = compiled.config.mode
    if ranks == 1 or mode in EACH_ITS_OWN or mode == "data_parallel":
        return None
    nodes = (node for each in compiled.graph.graphs() for node in each.nodes)
    if compiled.config.pipeline_stages == 1 and not any(isinstance(node.op, Collective) for node in nodes):
        return None
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.results)
    return [p for p in graph.parameters if p.kind == "input" and p in read]


def compare_inputs(
    comm: Communicator, rank: int, inputs: Sequence[Parameter], fed: Mapping[str, Array], step: int,
    fetch: Callable[[Array], Array],
) -> None:  # fmt: skip
    """Compare what ranks feed; all ranks call this together.

    Args:
        fed: by the name of an input the script's array. fetch: gives an array of the job's device as NumPy's.

    Raises:
        MspcError: ranks feed different values for the same part of an input.
    """
    own: dict[str, list[Any]] = {}
    for parameter in inputs:
        array = np.ascontiguousarray(fetch(fed[parameter.name]))
        own[parameter.name] = [_place(parameter, array, rank), zlib.crc32(array.reshape(-1).view(np.uint8))]
    place = any(place != WHOLE for place, _ in own.values())
    rows = comm.all_gather(np.array([[*fingerprint(json.dumps(own)), place]], np.int64), tuple(range(comm.size)), 0)
    if not rows[:, -1].any() and (rows == rows[0]).all():
        return
    of_ranks: list[dict[str, list[Any]]] = gathered(comm, own)
    first: dict[tuple[str, str], int] = {}
    for other, said in enumerate(of_ranks):
        for name, (where, digest) in said.items():
            before = first.setdefault((name, where), other)
            if of_ranks[before][name][1] != digest:
                raise _different(comm, name, (before, other), where, fed.get(name), step, fetch)


def _place(parameter: Parameter, array: Array, rank: int) -> str:
    if array.shape != parameter.shape:
        return WHOLE
    slices = slices_of(parameter, rank)
    return WHOLE if slices is None else ", ".join(f"{s.start}:{s.stop}" for s in slices)


def _different(
    comm: Communicator, name: str, ranks: tuple[int, int], where: str, own: Array, step: int,
    fetch: Callable[[Array], Array],
) -> MspcError:  # fmt: skip
    """The error of two ranks that feed different values; all ranks make it together."""
    array = np.asarray(fetch(own)) if own is not None and comm.rank in ranks else np.zeros(0)
    rows: list[int] = gathered(comm, [zlib.crc32(np.ascontiguousarray(row)) for row in np.atleast_1d(array)])
    one, two = (rows[rank] for rank in ranks)
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
    shown = gathered(comm, [str(value) for value in np.atleast_1d(array)[at : at + 1].reshape(-1)])
    pairs = zip(shown[ranks[0]], shown[ranks[1]], strict=False)
    left, right = next(((a, b) for a, b in pairs if a != b), ("", ""))
    row = f": in row {at} it has {left} on rank {ranks[0]} and {right} on rank {ranks[1]}" if array.ndim else ""
    part = "the global batch" if where == WHOLE else f"its slice [{where}]"
    return MspcError(
        f"ranks {ranks[0]} and {ranks[1]} feed different values of input '{name}' in step {step}, for {part}{row}",
        notes=[
            "these ranks must feed the same rows in the same order: seed what shuffles or draws them "
            "(np.random.seed, mindspore.dataset.config.set_seed) alike on all ranks",
            'if every rank has rows of its own, set dataset_strategy="data_parallel"',
        ],
    )

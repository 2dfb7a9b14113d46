"""Errors that are made from a network itself: `python -m tests.planted_generated NETWORK...`, all without names.

For every operator, collective and pass of a network: a gradient of an operand that is too large or has the other sign,
a kernel that is wrong on all devices, on one rank, or there from the second step on, a collective whose last rank hands
in half of its part, its negative, or another order, random numbers of another slice, and a graph that is wrong after a
pass that all ranks share. Prints every case, and counts; exits with 1 if an error is not found.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.planted import ACTED, Case, outcomes
from tests.planted_errors import NETWORK
from tests.planted_networks import NETWORKS
from tests.planted_shared import PARALLEL

FACTORS = {"too large": 1.05, "of the other sign": -1.0}
"""By the name of a wrong gradient, its factor."""
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of a graph that are changed, from the first to the last."""
PASSES = ("hoist_invariants", "route_experts", "simplify", "recompute")
"""Passes that ranks share and the reference does not run."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ON_PLACES = "one device has a place for every rank, with the same error"
UNSEEN = {
    "parallel: forward ReduceMean: wrong on one rank": ON_PLACES,
    "parallel: forward ReduceMean: wrong there from step 2": ON_PLACES,
    "parallel: backward DropoutGrad: wrong on one rank": ON_PLACES,
    "parallel: backward Pow: wrong on one rank": ON_PLACES,
    "parallel: backward ReduceSum: wrong on one rank": ON_PLACES,
    "parallel: backward ReluGrad: wrong on one rank": ON_PLACES,
    "parallel: backward Sub: wrong on all devices": "an exponent is no whole number, so that no gradient is a number",
    "loops: forward ReduceSum: wrong on one rank": "only its sign is read",
    "loops: forward ReduceSum: wrong there from step 2": "only its sign is read",
    "network: update Maximum: wrong there from step 2": "it is read after an overflow, which no later step has",
}
"""Errors that nothing can show, and why."""


def wrong_gradient(name: str, operand: int, factor: float) -> None:
    """The gradient of an operand has a factor that it should not have."""
    from mspc.ir.types import TensorType
    from mspc.ops.math.arithmetic import Mul
    from mspc.ops.op import REGISTRY

    kind: Any = REGISTRY[name]
    right = kind.bprop

    def bprop(self: Any, b: Any, *values: Any) -> Any:
        ACTED.append("bprop")
        found = list(right(self, b, *values))
        gradient = found[operand] if operand < len(found) else None
        if gradient is not None and isinstance(gradient.type, TensorType):
            found[operand] = b.emit(Mul(), gradient, b.constant(factor, gradient.tensor_type.dtype))
        return tuple(found)

    kind.bprop = bprop


def wrong_kernel(name: str, on_one_rank: bool, first: int = 1) -> None:
    """A kernel adds a pattern to its first floating-point result. first: the step from which on it does."""
    from mspc.ops.op import REGISTRY

    kind: Any = REGISTRY[name]
    for method in ("kernel", "kernel_into"):
        setattr(kind, method, _wrong_method(getattr(kind, method), on_one_rank, first))


def _wrong_method(right: Any, on_one_rank: bool, first: int) -> Any:
    def kernel(self: Any, be: Any) -> Any:
        run = right(self, be)
        if run is None or (on_one_rank and (getattr(be.comm, "size", 1) == 1 or be.comm.rank != 1)):
            return run

        def wrong(*operands: Any, out: Any = None) -> Any:
            if be.step < first:
                return run(*operands) if out is None else run(*operands, out=out)
            found = _with_pattern(run(*operands) if out is None else run(*operands, out=out))
            if out is None:
                return found
            for place, part in zip(*(x if isinstance(x, tuple) else (x,) for x in (out, found)), strict=True):
                place[...] = part
            return out

        return wrong

    return kernel


def _with_pattern(result: Any) -> Any:
    parts = list(result) if isinstance(result, tuple) else [result]
    for i, part in enumerate(parts):
        array = np.asarray(part)
        if array.dtype.kind == "f":
            ACTED.append("kernel")
            ramp = np.cos(np.arange(array.size, dtype=np.float64)).reshape(array.shape)
            parts[i] = (array * (1 + 0.05 * ramp) + 0.02 * ramp).astype(array.dtype)
            break
    return tuple(parts) if isinstance(result, tuple) else parts[0]


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "half": lambda array: array * 0.5,
    "the negative": lambda array: -array,
    "another order": lambda array: np.roll(array, 1),
}
"""By its name, how a part of a collective is wrong."""


def wrong_collective(name: str, how: str) -> None:
    """In a collective of ranks in this process the last one hands in something else."""
    from mspc.runtime.comm.local import LocalComm

    right = getattr(LocalComm, name)

    def wrong(self: Any, array: Any, *given: Any, **named: Any) -> Any:
        given_array = np.asarray(array)
        if self.rank == self.size - 1 and given_array.dtype.kind == "f":
            changed = CHANGES[how](given_array).astype(given_array.dtype)
            ACTED.append(not np.array_equal(changed, given_array))
            given_array = changed
        return right(self, given_array, *given, **named)

    setattr(LocalComm, name, wrong)


def wrong_slice() -> None:
    """Ranks draw the random numbers of the first slice."""
    from mspc.ops.random.dropout import Dropout

    right = Dropout.part

    def part(self: Any, shape: Any) -> Any:
        whole, begin, local = right(self, shape)
        ACTED.extend(begin)
        return whole, (0,) * len(begin), local

    Dropout.part = part  # type: ignore[method-assign]


def wrong_after(name: str, place: float) -> None:
    """After a pass the readers of a value of the graph read its tanh. place: which value, from 0 to 1."""
    from mspc.ir.graph import Node
    from mspc.ir.types import TensorType
    from mspc.ops.nn.activation import Tanh
    from mspc.passes.base import PassManager

    right = PassManager.apply

    def apply(self: Any, step: Any, graph: Any) -> Any:
        graph, changed = right(self, step, graph)
        if step.name != name or "slice" in graph.attrs:
            return graph, changed
        nodes = [
            node for node in graph.nodes
            if node.phase == "forward" and isinstance(node.type, TensorType) and node.type.dtype.is_float
            and not node.op.is_view and not node.op.mutates and node.layout is None and not node.op.constrains
            and (node in graph.results or any(_reads_number(reader, node) for reader in graph.nodes))
        ]  # fmt: skip
        node = nodes[int(place * (len(nodes) - 1))]
        made = Node(Tanh(), [node], node.type, "", "", node.scope, node.frames)
        ACTED.append("pass")
        for reader in graph.nodes:
            if reader is not node:
                reader.inputs = [made if value is node else value for value in reader.inputs]
        graph.results = [made if value is node else value for value in graph.results]
        graph.nodes.insert(graph.nodes.index(node) + 1, made)
        return graph, True

    PassManager.apply = apply  # type: ignore[method-assign]


def _reads_number(reader: Any, node: Any) -> bool:
    """Whether a node computes with a value: a comparison of it may stay the same, as its tanh has its sign."""
    from mspc.ir.graph import element_types

    return node in reader.inputs and (bool(reader.regions) or any(t.dtype.is_float for t in element_types(reader.type)))


def errors_of(script: Path, ranks: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every error for a network."""
    from mspc.commands.compile import CompileOptions, find_call
    from mspc.commands.verify import reference_of, traced
    from mspc.compiler.config import Config
    from mspc.ir.graph import element_types
    from mspc.ops.op import NotDifferentiable

    sys.argv = [str(script)]
    found = find_call(str(script), CompileOptions(ranks=ranks))
    config = Config.from_context(found.captured.context, ranks, str(script.parent))
    reference = reference_of(found.captured, traced(found.captured, config), own_weights=False)
    nodes = [node for graph in reference.graph.graphs() for node in graph.nodes]
    differentiated = {node.forward.op.name: node.forward for node in nodes if node.forward is not None}
    for name, node in sorted(differentiated.items()):
        of_it = [other for other in nodes if other.forward is not None and other.forward.op.name == name]
        for operand in sorted({other.forward_input for other in of_it if (other.forward_input or 0) >= 0} - {None}):
            if not isinstance(type(node.op).bprop, NotDifferentiable):
                for how, factor in FACTORS.items():
                    yield f"{name}: gradient of operand {operand} {how}", partial(wrong_gradient, name, operand, factor)
    computing = {
        node.op.name: node for node in nodes
        if any(t.dtype.is_float for t in element_types(node.type)) and not node.regions and not node.op.is_view
        and not node.op.mutates
    }  # fmt: skip
    for name, node in sorted(computing.items()):
        if name in differentiated or node.phase == "backward":
            yield f"{node.phase} {name}: wrong on all devices", partial(wrong_kernel, name, False)
        yield f"{node.phase} {name}: wrong on one rank", partial(wrong_kernel, name, True)
        yield f"{node.phase} {name}: wrong there from step 2", partial(wrong_kernel, name, True, 2)
    if ranks > 1:
        for name in COLLECTIVES:
            for how in CHANGES:
                yield f"{name}: {how} of the last rank's part", partial(wrong_collective, name, how)
    if "Dropout" in computing:
        yield "Dropout: numbers of the first slice", wrong_slice
    for name in PASSES:
        for place in PLACES:
            yield f"after {name}: another value at {place}", partial(wrong_after, name, place)


def generated(folder: Path, names: Sequence[str] = ()) -> list[Case]:
    """All cases of some networks, of all without names. folder: networks are written there."""
    made: list[Case] = []
    for name, (text, ranks) in {**NETWORKS, "network": (NETWORK, 8), "parallel": (PARALLEL, 2)}.items():
        if names and name not in names:
            continue
        script = folder / f"{name}.py"
        script.write_text(text, encoding="utf-8")
        made += [Case(f"{name}: {said}", plant, script, ranks, notes=True) for said, plant in errors_of(script, ranks)]
    return made


def main(arguments: Sequence[str]) -> int:
    """arguments: names of networks, and `PART/PARTS` to take a share."""
    shares = [argument for argument in arguments if "/" in argument]
    first, step = map(int, shares[0].split("/")) if shares else (0, 1)
    start, counts, missed = time.perf_counter(), dict[str, int](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        cases = generated(Path(folder), [a for a in arguments if "/" not in a])[first::step]
        for case, kind, said in outcomes(cases):
            counts[kind.partition(":")[0]] = counts.get(kind.partition(":")[0], 0) + 1
            if kind not in ("differs", "untouched") and not kind.startswith("fails") and case.name not in UNSEEN:
                missed.append(case.name)
            print(f"{time.perf_counter() - start:.0f} s: {case.name}: {kind[:120]}: {said[-90:]}", flush=True)
    print(f"{sum(counts.values())} cases: {counts}; not found: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

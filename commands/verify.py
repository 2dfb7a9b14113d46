"""`mspc verify`: some steps on one device and the same on N simulated ranks must give the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter as ScriptParameter
from mspc.api.common.tensor import Tensor
from mspc.commands.compile import CompileOptions, Found, find_launch
from mspc.commands.report.table import check_json, print_line, print_table, write_json
from mspc.commands.report.verdict import comparison_table, verdict
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Stage, compile_traced, trace_call
from mspc.engine.capture import Launch
from mspc.engine.compared import Row
from mspc.engine.comparison import Comparison
from mspc.engine.dumps import NO_FILES
from mspc.engine.finite_differences import Doubled, Request, requests
from mspc.engine.first_values import first_values
from mspc.engine.made_inputs import MadeInput, made_inputs
from mspc.engine.many_ranks import ManyRanks
from mspc.engine.one_device import OneDevice, Values
from mspc.engine.overflow import pokes
from mspc.engine.programs import Programs, compile_for
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Graph, Node
from mspc.ir.types import TensorType
from mspc.passes.base import OnPass
from mspc.passes.sharding.constraints import release_constraints
from mspc.runtime.slices import cut

Array = Any
MARK = "verify"
"""Attribute that numbers the operators before sharding, so that both compiles' values can be matched."""
SLICED = "slice_to_rank"
"""The pass behind which a rank's graph still has the operators of one device."""
STEPS = 3
"""Steps that are compared: what goes stale, and random numbers, are wrong from the second on."""


@dataclass
class _Verified:
    """What was compared. first: the first operator that differs. note: what is known of a difference beside it.
    directions: in how many gradients were compared with finite differences."""

    rows: list[Row] = field(default_factory=list[Row])
    first: Node | None = None
    inputs: dict[str, MadeInput] = field(default_factory=dict[str, MadeInput])
    note: str = ""
    directions: int = 0


def verify_target(target: str, options: CompileOptions, seed: int) -> None:
    """Compare, print the table and the verdict, fail where anything differs by more than its tolerance.

    With the table as JSON on stdout nothing else is printed there.

    Raises:
        MspcError: the program cannot be compiled. ExecutionError: a value differs.
    """
    check_json(options.json)
    found = find_launch(target, options)
    config = Config.from_context(found.launch.context, found.ranks, str(Path(found.launch.script).parent))
    if config.mode == "hybrid_parallel":
        raise MspcError(
            "in hybrid_parallel mode the script's own collectives decide what the ranks compute, so there is no step "
            "of one device to compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    many = _compiled(found.launch, config, options.loudness.on_pass())[0]
    if found.asked():
        _check_ranks_alike(found)
    verified = _compared(found.launch, many, seed)
    rows, first = verified.rows, verified.first
    if options.json is not None:
        write_json([r.__dict__ | {"shape": list(r.shape), "same": r.same} for r in rows], options.json)
    if options.json != Path("-"):
        if not options.loudness.quiet:
            _show(verified, config, seed)
        print_line(verdict(rows, config.ranks, first))
    wrong = [r for r in rows if not r.same]
    if wrong:
        where = f"the first operator where they part is {first.label}" if first is not None else ""
        raise ExecutionError(
            f"{len(wrong)} of {len(rows)} values differ between one device and {config.ranks} ranks",
            notes=[note for note in (where, verified.note) if note],
            frames=first.frames if first is not None else (),
        )


def _check_ranks_alike(found: Found) -> None:
    """Raises MspcError where ranks that ask for their number launch different graphs."""
    first = compile_for(found.launch, found.ranks, NO_FILES, found.asked)
    if Programs(first, range(found.ranks), True, NO_FILES, found.rerun).differ:
        raise MspcError(
            "the network depends on get_rank(): the ranks run different graphs, so there is no step of one device to "
            "compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )


def _compared(launch: Launch, many: Compiled, seed: int) -> _Verified:
    """The steps of one device beside those of the ranks."""
    config, fed, own = many.config, many.fed, many.config.feeds_own_rows
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.sharded)
    one, doubled = _compiled(_whole(launch, [f.graph_type if own else f.global_type for f in fed]), alone)
    weights = _weights(one)
    device, made, expected = _fed(launch, one, many, weights, seed)
    ranks = ManyRanks(config.ranks, many.rank_graph, partial(_plain, many), weights, _steps(made))
    comparison = Comparison(
        one.graph, many.graph, config.ranks, weights, expected, cache(partial(device.noise, expected)), own, MARK
    )
    verified = _beside(comparison, device, ranks)
    verified.inputs = made
    if doubled is not None:
        names = [p.name for p in one.graph.parameters if p.kind == "input"]
        values = weights | dict(zip(names, device.feeds[0][0], strict=True))
        rows, verified.directions = doubled.rows(values, seed)
        verified.rows += rows
        if rows and not verified.note:
            verified.note = f"by finite differences the gradient of {rows[0].name} is another, on one device too"
    return verified


def _fed(
    launch: Launch, one: Compiled, many: Compiled, weights: dict[str, Array], seed: int
) -> tuple[OneDevice, dict[str, MadeInput], list[list[Values]]]:
    """One device, its inputs (of both signs, unless it computes from these what is no number), what it computes."""
    brought: list[Tensor] = []
    describe_call(launch.args, brought)
    types, arrays = [f.global_type for f in many.fed], [t.asnumpy() for t in brought]
    mean = many.config.gradients_mean
    made = made_inputs(one.graph, types, arrays, seed, STEPS)
    device = OneDevice(one.graph, weights, _feeds(many, made), MARK, mean)
    expected = device.run()
    if _finite(expected):
        return device, made, expected
    positive = made_inputs(one.graph, types, arrays, seed, STEPS, positive=True)
    other = OneDevice(one.graph, weights, _feeds(many, positive), MARK, mean)
    found = other.run()
    return (other, positive, found) if _finite(found) else (device, made, expected)


def _finite(steps: list[list[Values]]) -> bool:
    """Whether results and parameters are numbers."""
    values = [v for places in steps for place in places for key, v in place.items() if not isinstance(key, int)]
    return all(np.isfinite(v.astype(np.float64)).all() for v in values if v.dtype.kind in "fV")


def _steps(made: dict[str, MadeInput]) -> list[list[Array]]:
    return [[m.arrays[step] for m in made.values()] for step in range(STEPS)]


def _feeds(many: Compiled, made: dict[str, MadeInput]) -> list[list[list[Array]]]:
    """For every place and step the inputs of one device: whole, or those of each rank."""
    if not many.config.feeds_own_rows:
        return [_steps(made)]
    return [
        [[cut(array, f.layout, rank) for array, f in zip(step, many.fed, strict=True)] for step in _steps(made)]
        for rank in range(many.config.ranks)
    ]


def _beside(comparison: Comparison, device: OneDevice, ranks: ManyRanks) -> _Verified:
    """The rows of all steps, and the first operator that differs in the first of them in which anything does."""
    gradients, first = comparison.operators(ranks.observed(MARK, 1)[0], 0)
    executed = ranks.executed()
    found = _Verified(comparison.results(executed) + gradients + comparison.parameters(executed), first)
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
    found: _Verified, comparison: Comparison, device: OneDevice, ranks: ManyRanks, executed: list[list[Any]]
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


def _whole(launch: Launch, types: Sequence[TensorType]) -> Launch:
    """The launch with global types in the places of its tensors."""
    rest = iter(types)

    def place(arg: Any) -> Any:
        if isinstance(arg, Tensor | TensorType | np.ndarray) and not isinstance(arg, ScriptParameter):
            return next(rest)
        return tuple(map(place, arg)) if isinstance(arg, tuple | list) else arg

    return replace(launch, args=tuple(map(place, launch.args)), whole=True)


def _compiled(launch: Launch, config: Config, on_pass: OnPass | None = None) -> tuple[Compiled, Doubled | None]:
    """The program with its operators numbered; of one device also what its gradients are judged by, if it has any."""
    asked: list[Request] = []
    doubled: list[Doubled] = []

    def mark(stage: Stage) -> None:
        if stage.name != "grad":
            asked[:] = requests(stage.graph) if not doubled else asked
            return
        if not config.sharded:
            release_constraints(stage.graph)
        if config.ranks == 1 and asked:
            doubled.append(Doubled.of(stage.graph, asked))
        for number, node in enumerate(stage.graph.nodes):
            node.attrs[MARK] = number

    call = trace_call(launch.target, describe_call(launch.args, []), config, launch.whole)
    return compile_traced(call, mark, on_pass), doubled[0] if doubled else None


def _plain(compiled: Compiled, rank: int) -> Graph:
    """A rank's graph as it is sliced, before operators are fused."""
    found: list[Graph] = []
    compiled.rank_graph(rank, lambda stage: found.append(stage.graph), (SLICED,))
    return found[0]


def _weights(compiled: Compiled) -> dict[str, Array]:
    return {value.name: np.array(value.make()) for value in first_values(compiled)}


def _show(verified: _Verified, config: Config, seed: int) -> None:
    ranks = f"{config.ranks} rank{'s' if config.ranks != 1 else ''}"
    title = f"one device beside {ranks}: {STEPS} steps, inputs from seed {seed}"
    print_table(comparison_table(verified.rows, title))
    for name, made in verified.inputs.items():
        print_line(f"input {name}: {made.said}")
    if verified.directions:
        print_line(f"gradients on one device beside finite differences along {verified.directions} random directions")
    if config.feeds_own_rows:
        how = "means" if config.gradients_mean else "sums"
        print_line(f"every rank beside one device on the rank's own rows, with gradients that are {how} over the ranks")

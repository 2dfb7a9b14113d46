"""`mspc verify`: one step on one device and the same step on N simulated ranks must give the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter as ScriptParameter
from mspc.api.common.tensor import Tensor
from mspc.commands.compile import CompileOptions, find_launch
from mspc.commands.report.fitting import Table
from mspc.commands.report.table import print_table, write_json
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Stage, compile_launch
from mspc.engine.capture import Launch
from mspc.engine.compared import Row, coarsest, compare
from mspc.engine.first_values import first_values
from mspc.engine.own_rows import alone_on_own_rows, compare_own_rows
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.passes.sharding.constraints import release_constraints
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.observe import join, observe
from mspc.runtime.slices import cut, cut_parameter

Array = Any
MARK = "verify"
"""Attribute that numbers the operators before sharding, so that both compiles' values can be matched."""
UPDATE_TOLERANCE = 1e-3
"""Difference up to which an updated parameter is excused when its gradient and optimizer states agree."""


def verify_target(target: str, options: CompileOptions, seed: int) -> None:
    """Compare, print the table, fail where anything differs by more than its tolerance.

    Raises:
        MspcError: the program cannot be compiled. ExecutionError: a value differs.
    """
    launch, ranks = find_launch(target, options)
    config = Config.from_context(launch.context, ranks, str(Path(launch.script).parent))
    if config.mode == "hybrid_parallel":
        raise MspcError(
            "in hybrid_parallel mode the script's own collectives decide what the ranks compute, so there is no step "
            "of one device to compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    own = config.feeds_own_rows
    many = _compiled(launch, config)
    fed = many.fed
    types = [f.graph_type if own else f.global_type for f in fed]
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.sharded)
    one = _compiled(_whole(launch, types), alone)
    data = _data([f.global_type for f in fed], launch, seed)
    weights = _weights(one)
    found = _on_ranks(many, data, weights)
    if own:
        inputs = [[cut(array, f.layout, rank) for array, f in zip(data, fed, strict=True)] for rank in range(ranks)]
        expected = alone_on_own_rows(one.graph, inputs, weights, MARK, config.gradients_mean)
        rows, first = compare_own_rows(one, many, expected, found, MARK)
    else:
        rows, first = _compare(one, many, _on_ranks(one, data, weights), found)
    _show(rows, config, seed)
    if options.json is not None:
        write_json([r.__dict__ | {"shape": list(r.shape), "same": r.same} for r in rows], options.json)
    wrong = [r for r in rows if not r.same]
    if wrong:
        raise ExecutionError(
            f"{len(wrong)} of {len(rows)} values differ between one device and {ranks} ranks",
            notes=[f"the first operator where they part is {first.label}"] if first is not None else (),
            frames=first.frames if first is not None else (),
        )


def _whole(launch: Launch, types: Sequence[TensorType]) -> Launch:
    """The launch with global types in the places of its tensors."""
    rest = iter(types)

    def place(arg: Any) -> Any:
        if isinstance(arg, Tensor | TensorType | np.ndarray) and not isinstance(arg, ScriptParameter):
            return next(rest)
        return tuple(map(place, arg)) if isinstance(arg, tuple | list) else arg

    return replace(launch, args=tuple(map(place, launch.args)), whole=True)


def _compiled(launch: Launch, config: Config) -> Compiled:
    def mark(stage: Stage) -> None:
        if stage.name == "grad":
            for number, node in enumerate(stage.graph.nodes):
                node.attrs[MARK] = number
            if not config.sharded:
                release_constraints(stage.graph)

    return compile_launch(launch.target, launch.args, config, mark, launch.whole)


def _data(types: Sequence[TensorType], launch: Launch, seed: int) -> list[Array]:
    """Global inputs: floats uniform in [0, 1), integers drawn from those that the script feeds."""
    generator = np.random.default_rng(seed)
    tensors: list[Tensor] = []
    describe_call(launch.args, tensors)
    found: list[Array] = []
    for i, type in enumerate(types):
        if type.dtype.is_float:
            found.append(generator.random(type.shape).astype(type.dtype.numpy))
            continue
        known = np.unique(tensors[i].asnumpy()) if i < len(tensors) else np.zeros(1)
        found.append(generator.choice(known, type.shape).astype(type.dtype.numpy))
    return found


def _weights(compiled: Compiled) -> dict[str, Array]:
    return {value.name: np.array(value.make()) for value in first_values(compiled)}


def _values(graph: Graph, rank: int, data: Sequence[Array], weights: dict[str, Array]) -> dict[Parameter, Array]:
    inputs = iter(data)
    return {
        p: np.array(cut_parameter(p, next(inputs) if p.kind == "input" else weights[p.name], rank, p.kind))
        for p in graph.parameters
    }


def _on_ranks(compiled: Compiled, data: Sequence[Array], weights: dict[str, Array]) -> list[dict[Any, Array]]:
    """What every rank computed: operators by their number, parameters by name, results by position."""

    def main(comm: LocalComm) -> dict[Any, Array]:
        graph = compiled.rank_graph(comm.rank)
        values = _values(graph, comm.rank, data, weights)
        return observe(graph, NumPyBackend(comm), values, MARK)

    return World(compiled.config.ranks).run(main)


def _compare(
    one: Compiled, many: Compiled, expected: list[dict[Any, Array]], found: list[dict[Any, Array]]
) -> tuple[list[Row], Node | None]:
    """Rows for results, gradients and parameters, and the first operator whose value differs."""
    rows: list[Row] = []
    least = coarsest(one.graph)
    for i, value in enumerate(many.graph.results):
        whole = _joined(found, ("result", i), _layout(value, many))
        rows.append(compare("output", str(i), expected[0]["result", i], whole, least))
    numbers = {node.attrs[MARK]: node for node in many.graph.nodes if MARK in node.attrs}
    first: Node | None = None
    for node in one.graph.nodes:
        number = node.attrs.get(MARK)
        other = numbers.get(number)
        if other is None or number not in expected[0]:
            continue
        try:
            whole = _joined(found, number, _layout(other, many))
        except KeyError:  # parts of it are needed nowhere
            continue
        compared = compare("operator", node.label, expected[0][number], whole, least)
        if not compared.same and first is None:
            first = node
        for name in filter(None, str(node.attrs.get("gradient_for", "")).split(",")):
            rows.append(replace(compared, kind="gradient", name=name))
    for parameter in one.graph.parameters:
        if parameter.kind == "parameter":
            mine = many.graph.parameter(parameter.name)
            whole = _joined(found, parameter.name, _layout(mine, many))
            rows.append(compare("parameter", parameter.name, expected[0][parameter.name], whole, least))
    return _excuse_updates(rows), first


def _joined(found: list[dict[Any, Array]], key: Any, layout: Layout) -> Array | None:
    """The whole value; None where the ranks' parts do not fit together. Raises KeyError where a part is missing."""
    try:
        return join(found, key, layout)
    except ValueError:
        return None


def _excuse_updates(rows: list[Row]) -> list[Row]:
    """Excuse parameters that differ a little more than their tolerance though all that their update reads agrees."""
    agreeing = {row.name for row in rows if row.kind == "gradient" and row.same}
    found: list[Row] = []
    for row in rows:
        states = [r for r in rows if r.kind == "parameter" and r.name.endswith(f".{row.name}")]
        if row.kind == "parameter" and row.name in agreeing and not row.same and row.difference <= UPDATE_TOLERANCE:
            row = replace(row, excused=all(state.same for state in states))
        found.append(row)
    return found


def _layout(value: Any, compiled: Compiled) -> Layout:
    if isinstance(value.layout, Layout):
        return value.layout
    return Layout.replicated(compiled.config.ranks, len(value.shape))


def _show(rows: list[Row], config: Config, seed: int) -> None:
    shown = [
        (
            row.kind,
            row.name,
            str(row.shape),
            f"{row.difference:.1e}",
            f"{row.tolerance:.0e}",
            row.remark,
        )
        for row in rows
    ]
    title = f"one device beside {config.ranks} ranks: one step, inputs uniform [0, 1) from seed {seed}"
    print_table(Table(title, ("value", "name", "shape", "difference", "tolerance", ""), shown, (3, 4)))
    if config.feeds_own_rows:
        how = "means" if config.gradients_mean else "sums"
        print(f"every rank beside one device on the rank's own rows, with gradients that are {how} over the ranks")

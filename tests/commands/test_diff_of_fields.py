"""`mspc diff` sees all fields of operators that change what they compute, constants, operands and first values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.comparison.all_differences import differences
from mspc.commands.facts.graph import OF_GROUPS, CompileFacts, GraphFacts
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.types import FLOAT16, FLOAT32, DType, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.fused.elementwise import BodyLine, FusedElementwise
from mspc.ops.math.arithmetic import Mul, Sub
from mspc.ops.op import REGISTRY, Op, load_operators

SHAPE = (4, 8)
MESSAGES = {"group", "group_back", "rank_list", "rank_id", "mesh", "axes", "sr_tag", "share", "micro_batch", "stage"}
"""Fields that say who meets whom, which the ranks of collectives say, and fields of costs alone."""


def other(value: Any) -> Any:
    """Another value of the same kind; None if there is no such one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, DType):
        return FLOAT32 if value != FLOAT32 else FLOAT16
    if isinstance(value, tuple):
        return (other(value[0]), *value[1:]) if value and other(value[0]) is not None else (*value, 1)
    return None


def made(kind: type[Op]) -> Iterator[Op]:
    """Operators of a class: of its samples, and with nothing given."""
    for each in kind.samples:
        yield kind(**each.fields)
    try:
        yield kind()
    except (TypeError, MspcError):  # it needs some fields
        return


def facts(op: Op, operands: list[Value] | None = None) -> CompileFacts:
    """The facts of a graph with one operator, and one that reads it."""
    graph = Graph("one")
    type = TensorType(FLOAT32, SHAPE)
    graph.parameters = [Parameter(name, type, "input") for name in ("x", "y")]
    node = Node(op, operands or list(graph.parameters), type, "made", "made")
    graph.nodes, graph.results = [node], [node]
    return CompileFacts("", 2, "", None, kinds=(GraphFacts(graph, False, False).of_ranks((0,)),))


def test_every_field_of_every_operator_is_compared() -> None:
    load_operators()
    unseen: list[str] = []
    count = 0
    for name in REGISTRY:
        kind = REGISTRY[name]
        op = next(made(kind), None)
        if op is None or kind.__module__.endswith("control.structural"):
            continue
        for each in fields(op):
            if issubclass(kind, Collective) and each.name in MESSAGES:
                continue
            changed = other(getattr(op, each.name))
            if changed is None:
                continue
            try:
                two = facts(replace(op, **{each.name: changed}))
            except MspcError:  # an operator that checks its fields
                continue
            if not differences(facts(op), two):
                unseen.append(f"{name}.{each.name}")
            count += 1
    assert unseen == [], unseen
    print(count)
    assert count > 500


def test_fields_of_groups_are_none_that_change_numbers() -> None:
    assert OF_GROUPS <= MESSAGES


def test_members_of_fused_operators_are_compared() -> None:
    def fused(*lines: BodyLine) -> CompileFacts:
        return facts(FusedElementwise.of(list(lines), (0,)))

    x, y = ("x", 0), ("x", 1)
    assert not differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Sub(), (x, y))))
    assert differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Sub(), (y, x))))
    assert differences(fused(BodyLine(Sub(), (x, y))), fused(BodyLine(Mul(), (x, y))))


@pytest.mark.parametrize("size", [1, 32])
def test_constants_are_compared(size: int) -> None:
    def with_constant(value: float) -> CompileFacts:
        array = np.zeros((size,), np.float32)
        array[-1] = value
        return facts(Sub(), [Parameter("x", TensorType(FLOAT32, SHAPE), "input"), Constant(array, FLOAT32)])

    assert not differences(with_constant(1.0), with_constant(1.0))
    assert differences(with_constant(1.0), with_constant(2.0))


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
ms.set_seed({seed})
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer(Normal({sigma}), [8, 8]), name="w")
        self.v = Parameter(Tensor(np.full((8, 8), {value}), ms.float32), name="v")
    def construct(self, x):
        return {results}
Net()(Tensor(np.ones((8, 8)), ms.float32))
"""
SAME = {"seed": 1, "sigma": 0.1, "value": 0.5, "results": "ops.tanh(x @ self.w), ops.sin(x @ self.v)"}


@pytest.mark.parametrize(
    "change",
    [{}, {"seed": 2}, {"sigma": 0.2}, {"value": 0.25}, {"results": "ops.sin(x @ self.v), ops.tanh(x @ self.w)"},
     {"results": "ops.tanh(x @ self.v), ops.sin(x @ self.w)"}],
    ids=str,
)  # fmt: skip
def test_compiles_that_compute_other_numbers_differ(tmp_path: Path, change: dict[str, Any]) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, text in zip(folders, (SAME, SAME | change), strict=True):
        script = tmp_path / f"{folder.name}.py"
        script.write_text(NETWORK.format(**text))
        assert CliRunner().invoke(app, ["compile", str(script), "--out", str(folder), "-q"]).exit_code == 0
    done = CliRunner().invoke(app, ["diff", *map(str, folders)])
    assert done.exit_code == (1 if change else 0), done.output

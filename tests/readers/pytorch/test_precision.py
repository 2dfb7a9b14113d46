"""Products in half precision, where a program is to be trained so and where it says so itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.ir.graph import Graph
from mspc.ir.types import BFLOAT16, FLOAT32, DType, TensorType
from mspc.readers.pytorch.reading import read_program
from mspc.readers.pytorch.training import Training, compiled_as
from tests.exported_programs import Exported, two_layers

F = "float32"


def with_block(enabled: bool, result: str = F) -> Exported:
    """`relu @ v.T` once more, in a block of autocast."""
    made, inner = two_layers(), Exported()
    for name, shape in (("relu", (6, 8)), ("v", (2, 8))):
        inner.tensor(name, F, shape)
        inner.graph["inputs"].append({"as_tensor": {"name": name}})
    inner.node("aten.linear.default", {"input": "relu", "weight": "v"}, {"again": (result, (6, 2))}, "second", 31)
    inner.graph["outputs"].append({"as_tensor": {"name": "again"}})
    given = {
        "a": {"as_string": "cpu"}, "b": {"as_scalar_type": 13}, "c": {"as_bool": enabled}, "d": {"as_bool": True},
        "e": {"as_graph": {"name": "block", "graph": inner.graph}}, "f": "relu", "g": "p_second_weight",
    }  # fmt: skip
    made.node("higher_order.wrap_with_autocast", given, {"block": (result, (6, 2))})
    made.output("block", "z")
    return made


def traced(made: Exported, folder: Path, precision: str) -> Graph:
    program = read_program(made.save(folder / "model.pt2"))
    found = compiled_as(program, Training(precision=precision))
    return trace(found.network, [Tensor(np.zeros(type.shape, np.float32)) for type in found.inputs]).graph


def products(graph: Graph) -> Iterator[tuple[DType, int]]:
    """The element types in which matrices are multiplied, and the lines."""
    for node in graph.nodes:
        if node.op.name == "MatMul":
            type = node.inputs[0].type
            assert isinstance(type, TensorType)
            yield type.dtype, node.frames[0].line


@pytest.mark.parametrize(("precision", "dtype"), [("", FLOAT32), ("float32", FLOAT32), ("bfloat16", BFLOAT16)])
def test_products(tmp_path: Path, precision: str, dtype: DType) -> None:
    graph = traced(two_layers(), tmp_path, precision)
    assert list(products(graph)) == [(dtype, 11), (dtype, 13)]
    assert [value.tensor_type.dtype for value in graph.results] == [FLOAT32]
    assert all(parameter.tensor_type.dtype == FLOAT32 for parameter in graph.parameters)


@pytest.mark.parametrize(
    ("enabled", "precision", "dtypes"),
    [
        (True, "", [FLOAT32, FLOAT32, BFLOAT16]),
        (False, "", [FLOAT32, FLOAT32, FLOAT32]),
        (False, "bfloat16", [BFLOAT16, BFLOAT16, FLOAT32]),
    ],
)
def test_blocks_of_autocast(tmp_path: Path, enabled: bool, precision: str, dtypes: list[DType]) -> None:
    """A block that is on computes in its type, one that is off as its operands are, whatever is around it."""
    graph = traced(with_block(enabled), tmp_path, precision)
    assert [(dtype, line) for dtype, line in products(graph)] == list(zip(dtypes, (11, 13, 31), strict=True))

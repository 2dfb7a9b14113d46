"""`torch.cond` in exported programs: with a condition that is known, and with one that only the run knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.reading import read_program
from mspc.readers.pytorch.sizes import with_sizes
from tests.exported_programs import Exported, two_layers

F = "float32"


def branch(kind: str) -> dict[str, Any]:
    """A graph that applies one operator."""
    made = Exported()
    made.tensor("t", F, (6, 8))
    made.graph["inputs"].append({"as_tensor": {"name": "t"}})
    made.node(kind, {"self": "t"}, {"u": (F, (6, 8))}, "", 41)
    made.graph["outputs"].append({"as_tensor": {"name": "u"}})
    return {"as_graph": {"name": kind, "graph": made.graph}}


def conditional(condition: Any) -> Exported:
    """`sin` of what is between the layers where the condition holds, else `exp`."""
    made = two_layers()
    made.node("aten.sum.default", {"self": "relu"}, {"total": (F, ())}, "", 21)
    made.node("aten.gt.Scalar", {"self": "total", "other": 40.0}, {"large": ("bool", ())}, "", 22)
    given = {"a": condition, "b": branch("aten.sin.default"), "c": branch("aten.exp.default"), "d": ["relu"]}
    made.node("higher_order.cond", given, {"found": (F, (6, 8))}, "", 23)
    made.output("found", "z")
    return made


@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_a_condition_that_the_run_knows(tmp_path: Path, scale: float) -> None:
    network = ImportedNetwork(read_program(conditional("large").save(tmp_path / "c.pt2")), "z")
    w, b, _ = (p.asnumpy() for p in network.get_parameters())
    x = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32) * np.float32(scale)
    relu = np.maximum(x @ w.T + b, 0)
    expected, slope = (np.sin(relu), np.cos(relu)) if relu.sum() > 40 else (np.exp(relu), np.exp(relu))
    assert (relu.sum() > 40) == (scale > 1)
    np.testing.assert_allclose(network(Tensor(x)).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    weights = network.trainable_params()[:2]
    _, (_, gradient) = mspc.value_and_grad(lambda rows: network(rows).sum(), None, weights)(Tensor(x))
    np.testing.assert_allclose(gradient.asnumpy(), (slope * (relu > 0)).sum(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("rows", "kind"), [(4, "Exp"), (6, "Sin")])
def test_a_condition_of_sizes(tmp_path: Path, rows: int, kind: str) -> None:
    """One of the graphs is there, as its condition is a number once sizes are."""
    made = conditional({"as_sym_bool": {"as_name": "more"}})
    made.graph["sym_bool_values"] = {"more": {"as_expr": {"expr_str": f"{rows} > 5", "hint": None}}}
    program = with_sizes(read_program(made.save(tmp_path / "c.pt2")), {})
    graph = trace(ImportedNetwork(program, "z"), [Tensor(np.zeros((6, 4), np.float32))]).graph
    assert {node.op.name for node in graph.nodes} & {"Exp", "Sin"} == {kind}


def test_what_is_no_condition(tmp_path: Path) -> None:
    made = conditional("large")
    made.graph["nodes"][-1]["inputs"].pop()
    program = read_program(made.save(tmp_path / "c.pt2"))
    with pytest.raises(MspcError, match="it has no two graphs that take its operands"):
        trace(ImportedNetwork(program, "z"), [Tensor(np.zeros((6, 4), np.float32))])

"""Strategies that say more than how an operator's operands are sharded: plans, stored strategies, dumps, cells with
strategies of their own. Each network equals one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from tests.compiler.sharded_networks import check_equals_one_device, compiled, networks

NETWORKS = networks("stored_strategies")


SMALL = "optimizers of small operators, on sharded parameters"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, NETWORKS[name])


def test_optimizers_of_small_operators_work_on_the_slices_of_their_parameters(tmp_path: Path) -> None:
    """Their states lie as the parameter does, and a gradient is summed once, not once for each moment: of two sums that
    were rounded otherwise a quotient is far off where the gradient is small."""
    found = compiled(tmp_path, NETWORKS[SMALL])
    states = {"u": ("lamb.lamb_m.u", "lamb.lamb_v.u"), "v": ("ftrl.moments.v", "ftrl.linear.v"),
              "w": ("adagrad.accum.w",), "x": ("rms.mean_square.x", "rms.mean_grad.x", "rms.moment.x")}  # fmt: skip
    for name, of in states.items():
        layout = found.graph.parameter(name).layout
        assert [found.graph.parameter(state).layout for state in of] == [layout] * len(of)
    users = found.graph.users()
    gradients = [node for node in found.graph.nodes if "gradient_for" in node.attrs]
    partial = [node for node in gradients if isinstance(node.layout, Layout) and node.layout.is_partial]
    assert len(partial) >= 2
    assert [len(users[gradient]) for gradient in partial] == [1] * len(partial)


def test_a_plan_says_how_parameters_are_stored(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a cell whose parameters are sharded by a plan"]).graph
    layouts = [graph.parameter(name).layout for name in ("net.w", "net.b", "moments.net.w")]
    assert [layout.strategy for layout in layouts if isinstance(layout, Layout)] == [(1, 4), (4,), (1, 4)]


TWO_AXES = "products on a mesh of two axes"
REFUSED = [
    (TWO_AXES, '(plane("None", ("x", "y")), plane("x", "y"))', "((1, 8), (8, 1))",
     "MatMul: enable_nd_tp needs a Layout for each of its two tensors"),
    ("a norm over a dimension that is sharded", "((2, 4), (4,))", "((2, 4), (2,))",
     "RmsNorm: the last dimensions of input 0 are sharded (4,), but input 1 (2,)"),
    ("an out_strategy for every result", "((4, 2, 1), (4, 2, 1), (4, 2, 1))", "((4, 1, 1),) * 3",
     "LayerNorm 'norm': the out_strategy shards result 0 (4, 1, 1), but it is sharded (4, 2, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "message"), REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    assert old in NETWORKS[name]
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, NETWORKS[name].replace(old, new, 1))
    assert raised.value.message == message


def test_products_on_a_mesh_of_two_axes_gather_and_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["products on a mesh of two axes"]).graph
    nodes = [node.op.name for node in graph.nodes if node.phase == "forward"]
    sent = [name for name in nodes if name in ("AllGather", "AllReduce", "ReduceScatter")]
    assert sent[:3] == ["ReduceScatter", "AllGather", "ReduceScatter"]


def test_reshard_takes_a_layout(tmp_path: Path) -> None:
    text = NETWORKS["a tensor brought into another layout"].replace('layout("mp", "None")', "(2, 1)")
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text)
    assert "reshard takes the layout of a tensor, not (2, 1)" in str(raised.value)


@pytest.mark.parametrize("value", ["False", "None"])
def test_enable_nd_tp_that_is_off_asks_for_nothing(tmp_path: Path, value: str) -> None:
    layouts = '(plane("None", ("x", "y")), plane("x", "y"))'
    text = NETWORKS["products on a mesh of two axes"].replace(layouts, "((8, 1), (1, 1))")
    asked = 'add_prim_attr("enable_nd_tp", True).shard'
    assert asked in text
    off = compiled(tmp_path, text.replace(asked, asked.replace("True", value)))
    forward = [node for node in off.graph.nodes if node.phase == "forward"]
    (product,) = [node for node in forward if node.instance == "first" and node.op.name == "MatMul"]
    assert product.in_strategy == ((8, 1), (1, 1))

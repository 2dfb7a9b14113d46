"""Expressions of sizes: both forms that exported programs have are read as data, computed and shown.

Loops and branches of exported programs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.evaluation import FEW
from mspc.readers.pytorch.exported_program import parsed, shown, symbols, value_of
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.sizes import with_sizes
from tests.exported_programs import Exported, two_layers

SIZES = {"s0": 7, "s1": 3, "u0": 10}


@pytest.mark.parametrize(
    ("text", "form", "value"),
    [
        ("s0", "s0", 7),
        ("12", "12", 12),
        ("Symbol('s0', positive=True, integer=True)", "s0", 7),
        ("Mul(Integer(2), Symbol('s0', integer=True))", "2*s0", 14),
        ("Add(Mul(Integer(2), Symbol('s0')), Integer(1))", "2*s0 + 1", 15),
        ("2*(s0 + s1)", "2*(s0 + s1)", 20),
        ("s0 - s1", "s0 - 1*s1", 4),
        ("FloorDiv(Add(Symbol('s0'), Integer(-1)), Integer(4))", "(s0 - 1)//4", 1),
        ("s0 // -2", "s0//-2", -4),
        ("CeilDiv(s0, 2)", "CeilDiv(s0, 2)", 4),
        ("Mod(u0, s1)", "u0%s1", 1),
        ("s1**2", "s1**2", 9),
        ("Pow(Symbol('s1'), Integer(3))", "s1**3", 27),
        ("Max(1, s0 + s1, Min(s0, 20))", "Max(1, s0 + s1, Min(s0, 20))", 10),
        ("ModularIndexing(u0, 2, 3)", "ModularIndexing(u0, 2, 3)", 2),
        ("Rational(6, 3)", "6/3", 2),
        ("TruncToInt(IntTrueDiv(s0, 2))", "TruncToInt(s0/2)", 3),
        ("Float('0.5', precision=53)", "0.5", 0.5),
        ("Eq(s0, 7)", "s0 == 7", True),
        ("GreaterThan(Symbol('s1'), Integer(4))", "s1 >= 4", False),
        ("And(s0 > 2, Not(Ne(s1, 3)))", "And(s0 > 2, Not(s1 != 3))", True),
        ("true", "True", True),
    ],
)  # fmt: skip
def test_forms(text: str, form: str, value: float) -> None:
    found = parsed(text)
    assert value_of(found, SIZES) == value
    assert shown(found) == form
    assert type(value_of(found, SIZES)) is type(value)
    assert value_of(parsed(shown(found)), SIZES) == value


def test_symbols_are_found_in_order() -> None:
    assert list(symbols(parsed("Max(s1, 2*s0 + u0) + s1"))) == ["s1", "s0", "u0", "s1"]


@pytest.mark.parametrize(
    "text",
    ["", "__import__('os').system('true')", "s0.real", "s0[0]", "lambda: 1", "s0 if s1 else 2", "'text'", "s0 +",
     "Unknown(s0)", "(" * 500 + "1" + ")" * 500, "1+" * 9000 + "1", "max(s0, s1)", "Add(s0, x=1)", "1j", "[1]"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|arithmetic|computed by"):
        parsed(text)


@pytest.mark.parametrize("text", ["s0 // 0", "Mod(s0, 0)", "10**s0**s0", "Pow(0, -1)", "FloorDiv(s0)"])
def test_what_has_no_value_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no value"):
        value_of(parsed(text), SIZES)


def test_a_symbol_without_value() -> None:
    with pytest.raises(KeyError, match="s9"):
        value_of(parsed("s9 + 1"), SIZES)


# Graphs of exported programs that run again and again: `while_loop`, `scan` and `map`.


F, WIDTH = "float32", 4


def inner(inputs: dict[str, Any], nodes: list[tuple[str, dict[str, Any], str, Any]], results: list[str]) -> Any:
    """A graph, and an argument that it is; nodes: kind, arguments, result and its type."""
    made = Exported()
    for name, (dtype, shape) in inputs.items():
        made.tensor(name, dtype, shape)
        made.graph["inputs"].append({"as_tensor": {"name": name}})
    for kind, given, result, about in nodes:
        made.node(kind, given, {result: about}, "", 31)
    made.graph["outputs"] = [{"as_tensor": {"name": name}} for name in results]
    return {"as_graph": {"name": "turn", "graph": made.graph}}


ROW = (F, (2, WIDTH))
STEP = [
    ("aten.mm.default", {"self": "h", "mat2": "w"}, "mixed", ROW),
    ("aten.add.Tensor", {"self": "mixed", "other": "r"}, "total", ROW),
    ("aten.tanh.default", {"self": "total"}, "next", ROW),
    ("aten.mul.Tensor", {"self": "next", "other": 2.0}, "made", ROW),
]


def scanned(rows: int, tables: int) -> Exported:
    """h = tanh(h @ w + the row of x), and twice that for every row; of two tables the second is not read."""
    made = Exported()
    w = made.stored("w", (np.arange(WIDTH * WIDTH).reshape(WIDTH, WIDTH) % 5 / 10 - 0.2).astype(np.float32))
    x = made.user("x", F, (rows, 2, WIDTH))
    first = made.node("aten.zeros.default", {"size": [2, WIDTH]}, {"first": ROW})
    more = {"r2": ROW} if tables == 2 else {}
    turn = inner({"h": ROW, "r": ROW, **more, "w": (F, (WIDTH, WIDTH))}, STEP, ["next", "made"])
    results = {"last": ROW, "all": (F, (rows, 2, WIDTH))}
    made.node("higher_order.scan", {"a": turn, "b": [first], "c": [x] * tables, "d": [w]}, results, "", 21)
    made.output("all")
    return made


@pytest.mark.parametrize(("rows", "tables"), [(3, 1), (FEW + 1, 1), (FEW + 1, 2)])
def test_a_scan(tmp_path: Path, rows: int, tables: int) -> None:
    """The graph has one turn of many rows."""
    network = ImportedNetwork(read_program(scanned(rows, tables).save(tmp_path / "s.pt2")))
    (weight,) = network.trainable_params()
    w, x = weight.asnumpy(), np.random.default_rng(3).normal(size=(rows, 2, WIDTH)).astype(np.float32)
    h, states = np.zeros((2, WIDTH)), []
    for row in x:
        states.append(h)
        h = np.tanh(h @ w + row)
    after = np.stack([*states[1:], h])
    np.testing.assert_allclose(network(Tensor(x)).asnumpy(), 2 * after, rtol=1e-4, atol=1e-5)
    carried, expected = np.zeros_like(h), np.zeros_like(w)
    for before, state in zip(states[::-1], after[::-1], strict=True):
        inside = (carried + 2) * (1 - state**2)
        expected += before.T @ inside
        carried = inside @ w.T
    _, (found,) = mspc.value_and_grad(lambda rows: network(rows).sum(), None, [weight])(Tensor(x))
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-4, atol=1e-4)
    names = [node.op.name for node in trace(network, [Tensor(x)]).graph.nodes]
    assert names.count("Tanh") == (rows if rows <= FEW else 0)


def test_a_map(tmp_path: Path) -> None:
    made = Exported()
    x, y = made.user("x", F, (3, 2)), made.user("y", F, (2,))
    turn = inner({"r": (F, (2,)), "y": (F, (2,))}, [
        ("aten.mul.Tensor", {"self": "r", "other": "y"}, "scaled", (F, (2,))),
        ("aten.sin.default", {"self": "scaled"}, "made", (F, (2,))),
    ], ["made"])  # fmt: skip
    made.node("higher_order.map_impl", {"a": turn, "b": [x], "c": [y]}, {"all": (F, (3, 2))})
    made.output("all")
    network = ImportedNetwork(read_program(made.save(tmp_path / "m.pt2")))
    rows, factor = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0.5, 2.0], np.float32)
    np.testing.assert_allclose(network(Tensor(rows), Tensor(factor)).asnumpy(), np.sin(rows * factor), rtol=1e-5)


SUM, PRODUCT = "aten.add.Tensor", "aten.mul.Tensor"
PAIR = [
    (PRODUCT, {"self": "a2", "other": "a1"}, "share", (F, (2, 1))),
    (PRODUCT, {"self": "b1", "other": "a2"}, "past", ROW),
    (SUM, {"self": "past", "other": "b2"}, "total", ROW),
]  # fmt: skip
LOGARITHMS = [("aten.logaddexp.default", {"self": "a2", "other": "a1"}, "share", (F, (2, 1))),
              ("aten.maximum.default", {"self": "b2", "other": "b1"}, "total", ROW)]  # fmt: skip


def paired(nodes: Any) -> Exported:
    """An associative scan of pairs."""
    made, step = Exported(), (F, (2, 1))
    combine = inner({"a1": step, "b1": ROW, "a2": step, "b2": ROW}, nodes, ["share", "total"])
    a, b = made.user("a", F, (5, 2, 1)), made.user("b", F, (5, 2, WIDTH))
    results = {"shares": (F, (5, 2, 1)), "all": (F, (5, 2, WIDTH))}
    made.node("higher_order.associative_scan", {"a": combine, "b": [a, b], "c": {"as_tensors": []}}, results, "", 21)
    made.output("shares")
    made.output("all")
    return made


@pytest.mark.parametrize("nodes", [PAIR, LOGARITHMS])
def test_associative_scans(tmp_path: Path, nodes: Any) -> None:
    network = ImportedNetwork(read_program(paired(nodes).save(tmp_path / "a.pt2")))
    draw = np.random.default_rng(4)
    x, y = draw.normal(size=(5, 2, 1)).astype(np.float32), draw.normal(size=(5, 2, WIDTH)).astype(np.float32)
    if nodes is PAIR:
        h, expected = np.zeros_like(y[0]), []
        for share, own in zip(x, y, strict=True):
            h = share * h + own
            expected.append(h)
        wanted = [np.cumprod(x, 0), np.stack(expected)]
    else:
        wanted = [np.logaddexp.accumulate(x, 0), np.maximum.accumulate(y, 0)]
    for found, other in zip(network(Tensor(x), Tensor(y)), wanted, strict=True):
        np.testing.assert_allclose(found.asnumpy(), other, rtol=1e-4, atol=1e-6)


def test_other_associative_scans_are_refused(tmp_path: Path) -> None:
    nodes = [*PAIR[:2], (SUM, {"self": "past", "other": "b1"}, "total", ROW)]
    network = ImportedNetwork(read_program(paired(nodes).save(tmp_path / "a.pt2")))
    given = [Tensor(np.ones(shape, np.float32)) for shape in ((5, 2, 1), (5, 2, WIDTH))]
    with pytest.raises(MspcError, match="its function is no sum, product, extremum, logaddexp or linear rec"):
        network(*given)


def doubled() -> Exported:
    """x doubled until its sum is 100 or more."""
    made = Exported()
    x = made.user("x", F, (2,))
    condition = inner({"r": (F, (2,))}, [
        ("aten.sum.default", {"self": "r"}, "total", (F, ())),
        ("aten.lt.Scalar", {"self": "total", "other": 100.0}, "small", ("bool", ())),
    ], ["small"])  # fmt: skip
    body = inner({"r": (F, (2,))}, [("aten.mul.Tensor", {"self": "r", "other": 2.0}, "twice", (F, (2,)))], ["twice"])
    empty = {"as_tensors": []}
    made.node("higher_order.while_loop", {"a": condition, "b": body, "c": [x], "d": empty}, {"y": (F, (2,))}, "", 21)
    made.output("y")
    return made


def test_a_loop_while_a_condition_holds(tmp_path: Path) -> None:
    network = ImportedNetwork(read_program(doubled().save(tmp_path / "w.pt2")))
    for value, factor in ((1.0, 64.0), (30.0, 2.0), (100.0, 1.0)):
        x = np.full(2, value, np.float32)
        np.testing.assert_allclose(network(Tensor(x)).asnumpy(), x * factor)


def test_what_is_no_loop(tmp_path: Path) -> None:
    made = doubled()
    made.graph["nodes"][-1]["inputs"].pop()
    program = read_program(made.save(tmp_path / "w.pt2"))
    with pytest.raises(MspcError, match="it has not the graphs and the operands of a loop"):
        trace(ImportedNetwork(program), [Tensor(np.zeros(2, np.float32))])


# `torch.cond` in exported programs: with a condition that is known, and with one that only the run knows.


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

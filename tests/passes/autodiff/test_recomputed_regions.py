"""Values that loops save for their gradients, and values that are computed again in place of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.base import PassManager
from mspc.passes.lib import region_gradients
from mspc.runtime.memory_plan import plan_memory
from tests.compiled_scripts import Compiled, compiled_script
from tests.executors import Grad, Simplify
from tests.graphs import INT64, Builder, Constant, Graph, Node, Value
from tests.operators import Add, Call, For, If, Less, MatMul, Mul, ReduceSum, Reshape, Sin, Tanh, While
from tests.passes.autodiff.differentiated import (
    COUNT,
    arrays_for,
    assert_gradients,
    checked,
    floats,
    graph,
    numerical,
    region,
    run,
    total_of,
    with_gradients,
)
from tests.passes.autodiff.test_gradients_in_regions import random_arrays_for as random_arrays
from tests.passes.autodiff.test_gradients_in_regions import request
from tests.random_regions import RandomRegions

CELL = "Default/cell, call 0"


def turn(b: Builder, _: Value, x: Value, w: Value) -> list[Value]:
    """Saves three values a turn beside what it carries on, which the next one saves."""
    return [b.emit(Tanh(), b.emit(Mul(), b.emit(Sin(), b.emit(MatMul(), x, w)), x))]


def loop(marked: Callable[[Graph], None] = lambda _: None) -> Graph:
    body = graph("body", [COUNT, floats(2, 3), floats(3, 3)], turn)
    marked(body)
    return total_of(For(turns=3, carried=1), [floats(2, 3), floats(3, 3)], body)


def node_of(made: Graph, kind: type) -> Node:
    return next(node for node in made.nodes if isinstance(node.op, kind))


def mark(made: Graph) -> None:
    for node in made.nodes[:-1]:
        node.attrs["recompute"] = CELL


def test_a_loop_saves_what_its_gradient_reads() -> None:
    made = assert_gradients(loop, [0, 1])
    assert node_of(made, For).attrs["saved"] == "144 bytes a turn: what gradients read"
    body, backward = made.graphs()[1:]
    assert len(body.results) == 4
    assert not any("recomputed" in node.attrs for node in backward.nodes)


def test_a_marked_part_of_a_body_is_computed_again() -> None:
    made = assert_gradients(lambda: loop(marked=mark), [0, 1])
    note = "48 bytes a turn: what gradients read, but for what is marked to be recomputed"
    assert node_of(made, For).attrs["saved"] == note
    body, backward = made.graphs()[1:]
    assert len(body.results) == 2
    assert [node.op.name for node in backward.nodes if "recomputed" in node.attrs] == ["MatMul", "Sin"]


def test_turns_that_would_save_too_much_save_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_gradients, "MAX_SAVED", 3 * 144 - 1)
    made = assert_gradients(loop, [0, 1])
    note = "48 bytes a turn: what a turn is given, since 3 turns of 144 bytes are more than 431"
    assert node_of(made, For).attrs["saved"] == note
    assert len(made.graphs()[1].results) == 2
    monkeypatch.setattr(region_gradients, "MAX_SAVED", 3 * 144)
    assert node_of(assert_gradients(loop, [0, 1]), For).attrs["saved"].endswith("what gradients read")


def test_views_and_what_all_turns_share_are_not_saved() -> None:
    def make() -> Graph:
        def body(b: Builder, _: Value, x: Value, w: Value) -> list[Value]:
            factor = b.emit(Sin(), b.emit(Reshape((3,)), w))
            return [b.emit(Tanh(), b.emit(Mul(), b.emit(Reshape((3,)), x), factor))]

        types = [floats(3), floats(3, 1)]
        return total_of(For(turns=3, carried=1), types, graph("body", [COUNT, *types], body))

    made = assert_gradients(make, [0, 1])
    assert node_of(made, For).attrs["saved"] == "24 bytes a turn: what gradients read"  # x; Tanh's is the next


def counted(b: Builder, x: Value, w: Value, n: Value, number: int) -> Value:
    """A loop of n turns."""
    types = [COUNT, floats(2, 3), floats(3, 3), COUNT]
    condition = graph(f"condition_{number}", types, lambda b, i, x, w, n: [b.emit(Less(), i, n)])

    def step(b: Builder, i: Value, x: Value, w: Value, n: Value) -> list[Value]:
        return [b.emit(Add(), i, Constant(1, INT64)), *turn(b, i, x, w)]

    body = graph(f"body_{number}", types, step)
    return region(b, While(carried=2), [Constant(0, INT64), x, w, n], condition, body)[1]


def cells(marked: bool) -> Graph:
    """Two cells, each with a loop in it and then a call of a layer that both call."""
    layer = graph("layer", [floats(2, 3), floats(3, 3)], lambda b, x, w: turn(b, x, x, w))

    def main(b: Builder, x: Value, w: Value, n: Value) -> list[Value]:
        for number in range(2):
            first = len(b.nodes)
            x = counted(b, x, w, n, number)
            x = region(b, Call(), [x, w], layer)[0]
            x = b.emit(Tanh(), x)
            for node in b.nodes[first:] if marked else ():
                node.attrs["recompute"] = f"Default/cell, call {number}"
        return [b.emit(ReduceSum(), x)]

    return graph("main", [floats(2, 3), floats(3, 3), COUNT], main)


def test_a_marked_cell_with_regions_runs_again_in_the_backward_graph() -> None:
    arrays = arrays_for(cells(False))
    expected = [numerical(cells(False), arrays, number) for number in (0, 1)]
    made = with_gradients(lambda: cells(True), [0, 1])
    made.results.append(next(node for node in made.nodes if isinstance(node.op, ReduceSum)))
    PassManager().run(made, [Grad(), Simplify(), Recompute(), Simplify()])
    for found, wanted in zip(run(checked(made), arrays)[:2], expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    forward = [node for node in made.nodes if node.regions and node.phase == "forward"]
    again = [node for node in made.nodes if node.regions and "recomputed" in node.attrs]
    assert [node.op.name for node in forward] == ["While", "Call", "While", "Call"]
    assert sorted(node.op.name for node in again) == ["Call", "Call", "While", "While"]
    for node in forward:
        assert "saved" not in node.attrs
        assert len(node.regions[-1].results) == (2 if isinstance(node.op, While) else 1)
    assert forward[1].regions == forward[3].regions != again[0].regions
    assert len({node.regions for node in again if isinstance(node.op, Call)}) == 1


def test_a_marked_loop_in_a_branch_runs_again_in_the_gradient_of_the_branch() -> None:
    def make() -> Graph:
        types = [floats(2, 3), floats(3, 3), COUNT]

        def then(b: Builder, x: Value, w: Value, n: Value) -> list[Value]:
            found = b.emit(Tanh(), counted(b, x, w, n, 0))
            for node in b.nodes:
                node.attrs["recompute"] = CELL
            return [found]

        branches = [graph("then", types, then), graph("else", types, lambda b, x, w, n: [x])]

        def main(b: Builder, x: Value, w: Value, n: Value) -> list[Value]:
            condition = b.emit(Less(), Constant(0, INT64), n)
            return [b.emit(ReduceSum(), region(b, If(), [condition, x, w, n], *branches)[0])]

        return graph("main", types, main)

    made = assert_gradients(make, [0, 1])
    loops = {each.name: node for each in made.graphs() for node in each.nodes if isinstance(node.op, While)}
    assert {name: node.op.stacked for name, node in loops.items() if isinstance(node.op, While)} == {
        "then": 0, "then_gradient": 3,
    }  # fmt: skip
    assert "saved" not in loops["then"].attrs


def test_recomputing_keeps_what_random_graphs_compute() -> None:
    for seed in range(6):
        made = RandomRegions(seed, mode="stand_alone", overwrites=seed % 2 == 0).graph
        made.attrs = {}
        for each in made.graphs():
            for number, node in enumerate(each.nodes):
                node.attrs["recompute"] = f"call {number // 6}"
        arrays = random_arrays(made, seed)
        request(made)
        PassManager().run(made, [Grad()])
        expected = run(made, arrays)
        PassManager().run(made, [Simplify(), Recompute()])
        for found, wanted in zip(run(checked(made), arrays), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


# Recomputing a marked cell: the same numbers from less memory.


MARK = "[Layer() for _ in range(LAYERS)]"


@pytest.fixture
def compiled(root: Path, tmp_path: Path) -> dict[str, Compiled]:
    source = (root / "benchmarks/networks/layers.py").read_text()
    assert MARK in source
    source = source.replace("BATCH, SEQUENCE, HEADS = 8, 16, 8", "BATCH, SEQUENCE, HEADS = 8, 64, 8")
    found: dict[str, Compiled] = {}
    for name, layer in (("saved", "Layer()"), ("recomputed", "Layer().recompute()")):
        script = tmp_path / f"{name}.py"
        script.write_text(source.replace(MARK, f"[{layer} for _ in range(LAYERS)]"))
        found[name] = compiled_script(script, 8, "4")
    return found


def test_recomputed_layers_hold_less_memory_and_do_more_work(compiled: dict[str, Compiled]) -> None:
    stored, recomputed = (compiled[name].rank_graph(0) for name in ("saved", "recomputed"))
    assert len(recomputed.nodes) > len(stored.nodes)
    assert plan_memory(recomputed).peak < 0.8 * plan_memory(stored).peak

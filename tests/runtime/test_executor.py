"""The executor: order, freeing, updates in place, errors, losses that are not finite."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.analysis.aliasing import Updates
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import library, program
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.tensor.reshape import ReduceSum, Reshape
from mspc.runtime import compiled_loops
from tests.errors import error_of, failure_of
from tests.executors import Executor, NumPyBackend, OneRank, World
from tests.graphs import FLOAT32, Builder, Constant, ExecutionError, Graph, Layout, Op, Parameter, TensorType
from tests.operators import Add, AssignAdd, GeLU, LayerNorm, MatMul, Mul, Scan, Softmax, Square, Transpose
from tests.runtime.graphs import (
    Broken,
    GraphMaker,
    Logarithm,
    Plus,
    Subtract,
    Total,
    TotalOfRanks,
    Turned,
    WithoutKernel,
    floats,
)
from tests.runtime.region_graphs import graph as region
from tests.runtime.region_graphs import run_graphs
from tests.runtime.test_buffers import Maker, arrays
from tests.serving import HANG

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def execute(graph: Graph, *inputs: Any, **values: Any) -> list[Any]:
    return Executor(graph, NumPyBackend(OneRank()), values).run(inputs)


def test_values_flow_in_order_and_constants_are_operands() -> None:
    make = GraphMaker()
    x, y = make.parameter("x", (2, 3)), make.parameter("y", (2, 3))
    two = make.node(Plus(), x, Constant(2.0, "Float32"))
    out = make.node(Plus(), two, y)
    first, second = execute(make.returns(out, two), X, 10 * X)
    np.testing.assert_array_equal(first, X + 2 + 10 * X)
    np.testing.assert_array_equal(second, X + 2)
    assert first.dtype == np.float32


class Watched(np.ndarray):
    """An array that weak references can point to."""


class Tracked(Op, abstract=True):
    """x + 1, remembered in `alive`."""

    def run(self, be: Any, x: Any) -> Any:
        result = (np.asarray(x) + 1).view(Watched)
        alive.append(weakref.ref(result))
        return result


class CountAlive(Op, abstract=True):
    """Writes down how many tracked arrays are alive while it runs."""

    def run(self, be: Any, x: Any) -> Any:
        gc.collect()
        counts.append(sum(ref() is not None for ref in alive))
        return np.asarray(x) + 0


alive: list[Any] = []
counts: list[int] = []


def test_values_are_freed_at_their_last_use() -> None:
    alive.clear()
    counts.clear()
    make = GraphMaker()
    value: Any = make.parameter("x", (2, 3))
    for _ in range(5):
        value = make.node(Tracked(), value)
    counted = make.node(CountAlive(), value)
    unread = make.node(Tracked(), counted)
    last = make.node(CountAlive(), counted)
    graph = make.returns(last)
    assert unread in graph.nodes
    execute(graph, X)
    assert counts == [1, 0]


def test_parameters_are_updated_in_place_and_kept() -> None:
    make = GraphMaker()
    x, w = make.parameter("x", (2, 3)), make.parameter("w", (2, 3), "parameter")
    update = make.node(Subtract(), w, x)
    loss = make.node(Depend(), make.node(Total(), w, shape=()), update, shape=())
    make.graph.nodes.insert(0, make.graph.nodes.pop(1))  # the loss is read before the update
    array = np.ones((2, 3), np.float32)
    executor = Executor(make.returns(loss), NumPyBackend(OneRank()), {"w": array})
    assert executor.run([X])[0] == 6
    assert executor.run([X])[0] == 6 - X.sum()
    np.testing.assert_array_equal(array, 1 - 2 * X)
    assert executor.parameter("w") is array
    assert executor.trains


def test_an_update_that_nobody_reads_is_not_copied() -> None:
    make = GraphMaker()
    w, x = make.parameter("w", (2, 3), "parameter"), make.parameter("x", (2, 3))
    first, second = make.node(Subtract(), w, x), make.node(Subtract(), w, x)
    assert Updates(make.graph).between((first,), 0, 1)
    assert not Updates(make.graph).between((second,), 1, 0)


def test_a_view_of_a_parameter_keeps_the_value_of_before_the_update() -> None:
    make = GraphMaker()
    x, w = make.parameter("x", (3, 3)), make.parameter("w", (3, 3), "parameter")
    view = make.node(Turned(), w, shape=(3, 3))
    update = make.node(Subtract(), w, x, shape=(3, 3))
    out = make.node(Depend(), make.node(Plus(), view, x, shape=(3, 3)), update, shape=(3, 3))
    ones, start = np.ones((3, 3), np.float32), np.arange(9, dtype=np.float32).reshape(3, 3)
    executor = Executor(make.returns(out), NumPyBackend(OneRank()), {"w": start.copy()})
    np.testing.assert_array_equal(executor.run([ones])[0], start.T + 1)
    np.testing.assert_array_equal(executor.run([ones])[0], start.T)


@pytest.mark.parametrize("sliced", [False, True], ids=["an array", "a view of a larger array"])
def test_what_an_update_returns_is_not_changed_by_the_next(sliced: bool) -> None:
    """Whole, seen through views, and inside a tuple."""
    graph = Graph("net")
    w, x = Parameter("w", TensorType(FLOAT32, (2, 2)), "parameter"), Parameter("x", TensorType(FLOAT32, (2, 2)))
    graph.parameters = [w, x]
    b = Builder(graph)
    first = b.emit(AssignAdd(), w, x)
    flat, turned, pair = b.emit(Reshape((4,)), first), b.emit(Transpose((1, 0)), first), b.emit(MakeTuple(), first, x)
    second = b.emit(AssignAdd(), w, x)
    of_pair = b.emit(TupleGetItem(0), pair)
    graph.results = [first, flat, turned, b.emit(Reshape((4,)), of_pair), second, b.emit(Add(), flat, flat)]
    memory = np.zeros(16, np.float32)
    array = memory[4:8].reshape(2, 2) if sliced else np.zeros((2, 2), np.float32)
    executor = Executor(graph, NumPyBackend(OneRank()), {"w": array})
    kept: list[Any] = []
    for step in range(3):
        found = executor.run([np.ones((2, 2), np.float32)])
        kept += [found[0], found[4]]
        assert [result.ravel()[0] for result in found] == [2 * step + n for n in (1, 1, 1, 1, 2)] + [4 * step + 2]
        assert not any(np.shares_memory(result, array) for result in found)
    assert [result[1, 1] for result in kept] == [1, 2, 3, 4, 5, 6]


def test_a_result_never_shares_memory_with_a_parameter() -> None:
    make = GraphMaker()
    w = make.parameter("w", (3, 3), "parameter")
    array = np.ones((3, 3), np.float32)
    whole, turned = execute(make.returns(w, make.node(Turned(), w, shape=(3, 3))), w=array)
    assert not np.shares_memory(whole, array)
    assert not np.shares_memory(turned, array)


def test_a_kernel_failure_names_node_rank_types_and_line() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2, 3))
    error = failure_of(execute, make.returns(make.node(Broken(), x, instance="op")), X)
    assert str(error) == (
        "net.py:12:5: error: Broken 'op' failed on rank 0 in step 1: ValueError: the kernel is broken\n"
        "        out = self.op(x)\n"
        "        ^^^^\n"
        "  note: its operands are (<Tensor[Float32], (2, 3)>), its result <Tensor[Float32], (2, 3)>"
    )
    assert error.exit_status == 1


def test_operators_without_kernel_are_all_named() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2, 3))
    first = make.node(WithoutKernel(), x, instance="a")
    error = error_of(execute, make.returns(make.node(WithoutKernel(), first, instance="b")), X)
    assert "WithoutKernel 'a' has no kernel" in str(error)
    assert "WithoutKernel 'b' has no kernel" in str(error)


@pytest.mark.parametrize(
    ("fed", "message"),
    [
        ([X[:1]], "argument 'x' is float32 of shape (1, 3); this rank's graph takes float32 of shape (2, 3)"),
        (
            [X.astype(int)],
            "argument 'x' is int64 of shape (2, 3); this rank's graph takes float32 of shape (2, 3)",
        ),
        ([], "the graph takes 1 inputs, 0 were given"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(fed: list[Any], message: str) -> None:
    make = GraphMaker()
    graph = make.returns(make.node(Total(), make.parameter("x", (2, 3)), shape=()))
    assert error_of(execute, graph, *fed).message == message


def test_a_missing_value_is_refused() -> None:
    make = GraphMaker()
    graph = make.returns(make.parameter("w", (2, 3), "parameter"))
    assert error_of(execute, graph).message == "there is no value for parameter 'w'"


def training(ranks: int = 1) -> Graph:
    """loss = sum(log(x + w)), summed over ranks; then w -= x."""
    make = GraphMaker()
    x, w = make.parameter("x", (2,)), make.parameter("w", (2,), "parameter")
    moved = make.node(Plus(), x, w, shape=(2,), instance="add")
    loss = make.node(Total(), make.node(Logarithm(), moved, shape=(2,), instance="log"), shape=())
    if ranks > 1:
        loss = make.node(TotalOfRanks(tuple(range(ranks))), loss, shape=())
        loss.layout = Layout.replicated(ranks, 0)
    update = make.node(Subtract(), w, x, shape=(2,))
    return make.returns(make.node(Depend(), loss, update, shape=()))


def test_a_nan_in_the_loss_stops_before_the_update_and_names_the_first_node() -> None:
    array = floats(1, 1)
    executor = Executor(training(), NumPyBackend(OneRank()), {"w": array})
    executor.run([floats(0.5, 0.25)])
    kept = array.copy()
    error = failure_of(executor.run, [floats(-9, 1)])
    assert error.message == "the loss of step 2 is NaN on rank 0; the first such value comes from Logarithm 'log'"
    assert error.location is not None
    assert error.location.line == 12
    np.testing.assert_array_equal(array, kept)


def test_a_parameter_that_holds_an_infinity_is_named() -> None:
    executor = Executor(training(), NumPyBackend(OneRank()), {"w": floats(1, np.inf)})
    assert failure_of(executor.run, [floats(1, 1)]).message == (
        "the loss of step 1 is an infinity on rank 0; parameter 'w' held such a value before the step; "
        "the first to read it is Plus 'add'"
    )


def test_the_rank_where_a_nan_arises_is_named_although_all_see_it() -> None:
    def main(comm: Any) -> None:
        executor = Executor(training(3), NumPyBackend(comm), {"w": floats(1, 1)})
        executor.run([floats(1, 1)])
        executor.run([floats(1, -5) if comm.rank == 2 else floats(1, 1)])

    assert (
        failure_of(lambda: World(3).run(main)).message
        == "the loss of step 2 is NaN on rank 2; the first such value comes from Logarithm 'log'"
    )


def test_the_running_node_is_left_in_the_cursor() -> None:
    make = GraphMaker()
    x = make.parameter("x", (2, 3))
    graph = make.returns(make.node(Broken(), make.node(Plus(), x, x)))
    cursor = [-1]
    executor = Executor(graph, NumPyBackend(OneRank()), {}, cursor)
    with pytest.raises(ExecutionError):
        executor.run([X])
    assert cursor == [1]


def network() -> Graph:
    """Products between chains, a norm, rows, sums, and an update of a parameter."""
    make = Maker()
    x, w = make.values
    make.graph.parameters[1].kind = "parameter"
    product = make.add(GeLU(), make.add(MatMul(), x, w))
    total = make.add(ReduceSum(False, (0,)), product)
    normed = make.add(TupleGetItem(0), make.add(LayerNorm(1, 1, 1e-5), product, total, total))
    soft = make.add(Softmax(), make.add(Add(), normed, x))
    grown = make.add(AssignAdd(), w, make.add(Mul(), soft, product))
    return make.done(soft, total, grown)


def losses(steps: int = 3) -> list[list[Any]]:
    """The results of some steps, and the names of the nodes' kernels."""
    x, w = arrays()
    executor = Executor(network(), NumPyBackend(OneRank(), planned_from=0), {"x1": w.copy()})
    return [[np.array(value) for value in executor.run([x])] for _ in range(steps)]


def test_a_small_graph_asks_for_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(program, "kernels", refuse)
    losses(1)
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", 0)
    with pytest.raises(AssertionError):
        losses(1)


def test_steps_are_those_of_numpy_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.compiler():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = losses()
    found: list[program.LoopKernels] = []
    make = program.kernels

    def noted(*arguments: Any) -> program.LoopKernels:
        found.append(make(*arguments))
        return found[-1]

    monkeypatch.setattr(program, "kernels", noted)
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", 0)
    monkeypatch.setattr(compiled_loops, "MIN_NODE_ELEMENTS", 0)
    first, again = losses(), losses()
    assert [(len(made.loops), len(made.updates)) for made in found] == [(6, 1)] * 2
    for step, other, numbers in zip(first, again, wanted, strict=True):
        for one, two, three in zip(step, other, numbers, strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_allclose(one, three, rtol=2e-5, atol=2e-6)


def test_attention_counts_with_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("attention")
    builder = Builder(graph)
    sides = [Parameter(name, TensorType(FLOAT32, (1, 2, 64, 4)), "input") for name in ("q", "k", "v")]
    builder.emit(FlashAttentionScore(2, input_layout="BNSD"), *sides)
    found: list[bool] = []
    for worth in (2 * 64 * 64, 2 * 64 * 64 + 1):
        monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", worth)
        found.append(compiled_loops.is_worth_compiling(graph, NumPyBackend(OneRank())))
    assert found == [True, False]


def test_what_loops_do_counts_as_often_as_they_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = TensorType(FLOAT32, (64,))
    body = region("body", [row], lambda b, x: [b.emit(Square(), b.emit(Square(), x))])
    loop = region("main", [row], lambda b, x: run_graphs(b, Scan(turns=5, carried=1), [x], body))
    found: list[bool] = []
    for worth in (5 * 2 * 64, 10 * 2 * 64):
        monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", worth)
        found.append(compiled_loops.is_worth_compiling(loop, NumPyBackend(OneRank())))
    assert found == [True, False]


def test_what_programs_share_is_compiled_beside_the_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not library.compiler():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elements = sum(map(compiled_loops.elements, network().nodes))
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", elements // 2)
    assert compiled_loops.begin_library(network(), "CPU", 4) is None
    assert compiled_loops.begin_library(network(), "GPU", 1) is None
    thread = compiled_loops.begin_library(network(), "CPU", 2)
    assert thread is not None
    thread.join(HANG)
    assert not thread.is_alive()
    made = list((tmp_path / "mspc" / "loops").glob("*.so"))
    assert len(made) == 1
    monkeypatch.setattr(library, "_compile_library", lambda *_: pytest.fail("it is compiled again"))
    thread_pool.library.cache_clear()
    assert thread_pool.library() is not None
    thread_pool.put_on_disk()

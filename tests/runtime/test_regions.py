"""Nodes that run graphs, on one rank, compared with plain NumPy."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.run import run_directory
from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ops.control.regions import Call, For, If, Scan, While
from mspc.ops.control.structural import items
from mspc.ops.math.arithmetic import Add, Greater, Less, Mul, Sub
from mspc.runtime import compiled_loops
from mspc.runtime.device_choice import DeviceOptions
from mspc.runtime.memory_plan import peak_of, plan_memory
from mspc.runtime.plan import copy_value
from tests.errors import failure_of
from tests.executors import Executor, Grad, NumPyBackend, OneRank, World
from tests.graphs import BOOL, Builder, Constant, ExecutionError, Graph, MspcError, Node, TensorType, Value
from tests.interpreted_regions import region_results
from tests.operators import AllReduce, Assign, AssignAdd, Dropout, Log, MatMul, Reshape, Square, Transpose, UniformReal
from tests.random_regions import RandomRegions
from tests.runtime.graphs import WHERE, Broken
from tests.runtime.region_graphs import COUNT, SCALAR, executor, floats, graph, numbers, run_graphs
from tests.runtime.region_programs import GROWS, STAYS, counting_up, growing_together, write_program
from tests.serving import SERVED, run_process


def one(value: float = 1.0) -> Constant:
    return Constant(np.float32(value))


def doubling() -> tuple[While, list[object]]:
    """x doubles until it is no more below a limit."""
    types = [floats(), SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, x)])
    return While(carried=1), [condition, body]


@pytest.mark.parametrize("limit", [0, 5])
def test_a_reverse_loop_takes_what_a_loop_without_count_has_stacked(limit: float) -> None:
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    forward = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, one()), b.emit(Mul(), x, x)])
    back = graph("for_2_body", [COUNT, SCALAR, SCALAR], lambda b, _, total, x: [b.emit(Sub(), x, total)])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        last, count, stack = run_graphs(b, While(carried=1, stacked=1), [x, limit], condition, forward)
        found = run_graphs(b, For(carried=1, scanned=1, reverse=True), [count, one(7), stack], back)
        return [last, count, *found]

    last, count, total = executor(graph("main", types, main)).run([np.float32(1), np.float32(limit)])
    squares = [np.float32(i * i) for i in range(1, int(limit))]
    wanted = np.float32(7)
    for square in reversed(squares):
        wanted = square - wanted
    assert (last, count, total) == (max(limit, 1), len(squares), wanted)


def test_a_scan_without_turns_hands_out_what_it_was_given() -> None:
    body = graph("scan_1_body", [floats(2), floats(2)], lambda b, x, entry: [b.emit(Add(), x, entry), entry])
    op = Scan(turns=0, carried=1, scanned=1, stacked=1)
    main = graph("main", [floats(2), floats(0, 2)], lambda b, *values: run_graphs(b, op, values, body))
    first, stack = executor(main).run([numbers(1, 2), np.zeros((0, 2), np.float32)])
    assert first.tolist() == [1, 2]
    assert stack.shape == (0, 2)


# Overwritten values


def test_what_a_region_reads_of_a_weight_ahead_of_an_update_stays() -> None:
    """A view of the weight is made, then the weight is overwritten, then the view is read."""

    def turn(b: Builder, x: Value, w: Value) -> list[Value]:
        turned = b.emit(Transpose((1, 0)), w)
        b.emit(AssignAdd(), w, x)
        return [b.emit(Add(), x, turned), b.emit(Transpose((1, 0)), w)]

    body = graph("scan_1_body", [floats(2, 2), floats(2, 2)], turn)

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        return run_graphs(b, Scan(turns=3, carried=1, stacked=1), [x, w], body)

    weight, x = np.arange(4, dtype=np.float32).reshape(2, 2), np.ones((2, 2), np.float32)
    w, stack = weight.copy(), []
    run = executor(graph("main", [floats(2, 2)] * 2, main, ["w"]), {"w": weight})
    found = run.run([x])
    for _ in range(3):
        before = w.T.copy()
        w = w + x
        x = x + before
        stack.append(w.T.copy())
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], stack)
    np.testing.assert_array_equal(weight, w)


def test_a_loop_without_count_stacks_a_weight_as_it_was() -> None:
    types = [SCALAR, SCALAR, floats(2)]
    condition = graph("while_1_condition", types, lambda b, x, limit, w: [b.emit(Less(), x, limit)])

    def turn(b: Builder, x: Value, limit: Value, w: Value) -> list[Value]:
        b.emit(AssignAdd(), w, Constant(numbers(1, 2)))
        return [b.emit(Add(), x, one()), w]

    total = graph("for_2_body", [COUNT, floats(2), floats(2)], lambda b, _, x, entry: [b.emit(Add(), x, entry)])

    def main(b: Builder, limit: Value, w: Value) -> list[Value]:
        op = While(carried=1, stacked=1)
        _, count, stack = run_graphs(b, op, [one(0), limit, w], condition, graph("while_1_body", types, turn))
        zeros = Constant(numbers(0, 0))
        return run_graphs(b, For(carried=1, scanned=1), [count, zeros, stack], total)

    run = executor(graph("main", [SCALAR, floats(2)], main, ["w"]), {"w": numbers(0, 0)})
    assert run.run([np.float32(3)])[0].tolist() == [1 + 2 + 3, 2 + 4 + 6]


def test_a_loop_carries_a_weight_that_it_overwrites() -> None:
    """The carried value is the weight as it was before the loop."""

    def turn(b: Builder, x: Value, w: Value) -> list[Value]:
        b.emit(Assign(), w, b.emit(Mul(), w, one(2)))
        return [x]

    body = graph("scan_1_body", [floats(2), floats(2)], turn)

    def main(b: Builder, w: Value) -> list[Value]:
        return run_graphs(b, Scan(turns=3, carried=1), [b.emit(Reshape((2,)), w), w], body)

    weight = numbers(1, 2)
    run = executor(graph("main", [floats(2)], main, ["w"]), {"w": weight})
    assert run.run([])[0].tolist() == [1, 2]
    assert weight.tolist() == [8, 16]


def test_a_choice_that_overwrites_a_weight_leaves_views_made_before() -> None:
    def change(b: Builder, view: Value, w: Value) -> list[Value]:
        b.emit(AssignAdd(), w, Constant(numbers(1, 1)))
        return [b.emit(Add(), view, w)]

    then = graph("if_1_then", [floats(2), floats(2)], change)
    otherwise = graph("if_1_else", [floats(2), floats(2)], lambda b, view, w: [view])

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        view = b.emit(Reshape((2,)), w)
        return run_graphs(b, If(), [b.emit(Greater(), x, one(0)), view, w], then, otherwise)

    weight = numbers(1, 2)
    run = executor(graph("main", [SCALAR, floats(2)], main, ["w"]), {"w": weight})
    kept = run.run([np.float32(-1)])[0]
    assert run.run([np.float32(1)])[0].tolist() == [1 + 2, 2 + 3]
    assert run.run([np.float32(1)])[0].tolist() == [2 + 3, 3 + 4]
    assert kept.tolist() == [1, 2]
    assert weight.tolist() == [3, 4]


# Random numbers


@pytest.mark.parametrize("limits", [(4, 0, 4, 0), (0, 4, 0)])
def test_what_a_loop_without_turns_hands_out_stays_when_the_weight_is_overwritten(limits: Sequence[float]) -> None:
    """A weight goes through a loop, which has no turns in some steps, and is then overwritten."""
    op, regions = doubling()

    def main(b: Builder, limit: Value, new: Value, w: Value) -> list[Value]:
        (found,) = run_graphs(b, op, [w, limit], *regions)  # type: ignore[arg-type]  # graphs
        view = b.emit(Reshape((1,)), found)
        b.emit(Assign(), w, new)
        return [found, view, b.emit(Add(), found, one(0))]

    run = executor(graph("main", [SCALAR, SCALAR, SCALAR], main, ["w"]), {"w": np.array(1, np.float32)})
    kept, weight = list[tuple[list[Any], float]](), 1.0
    for new, limit in enumerate(limits, 1):
        wanted = weight
        while wanted < limit:
            wanted *= 2
        kept.append((run.run([np.float32(limit), np.float32(new)]), wanted))
        weight = float(new)
    assert [[float(x.item()) for x in found] for found, _ in kept] == [[wanted] * 3 for _, wanted in kept]


def test_every_turn_draws_other_numbers_and_a_reverse_loop_the_same() -> None:
    drawn = UniformReal(seed=3, shape=(4,))
    inner = graph("for_1_body", [COUNT], lambda b, i: [b.emit(drawn)])

    def loop(b: Builder, reverse: bool) -> list[Value]:
        one, other = (For(turns=turns, stacked=1, reverse=reverse) for turns in (3, 2))
        body = graph(f"for_{reverse}_body", [COUNT], lambda b, i: run_graphs(b, one, [], inner))
        return run_graphs(b, other, [], body)

    run = executor(graph("main", [], lambda b: [*loop(b, False), *loop(b, True), b.emit(drawn)]))
    one_step, other_step = run.run([]), run.run([])
    for forward, reverse, outside in (one_step, other_step):
        np.testing.assert_array_equal(forward, reverse)
        assert len(np.unique([*forward.reshape(-1, 4), outside], axis=0)) == 7
    assert not np.isin(one_step[0], other_step[0]).any()
    plain = executor(graph("main", [], lambda b: [b.emit(drawn)]))
    np.testing.assert_array_equal(plain.run([])[0], one_step[2])


def test_compiled_loops_draw_what_numpy_draws_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    body = graph("for_1_body", [COUNT, floats(64, 128)], lambda b, _, x: [items(b, b.emit(Dropout(0.5, 7), x), 2)[0]])
    main = graph("main", [floats(64, 128)], lambda b, x: run_graphs(b, For(turns=2, carried=1), [x], body))
    x = np.ones((64, 128), np.float32)
    plain = executor(main).run([x])[0]
    assert 0.2 < np.count_nonzero(plain) / plain.size < 0.3
    monkeypatch.setattr(compiled_loops, "MIN_PROGRAM_ELEMENTS", 0)
    np.testing.assert_array_equal(executor(main).run([x])[0], plain)


# Failures


def test_a_failure_inside_names_the_node_and_the_turns() -> None:
    def turn(b: Builder, i: Value, x: Value) -> list[Value]:
        b.nodes.append(Node(Broken(), [x], floats(2), frames=WHERE))
        return [b.nodes[-1]]

    body = graph("for_1_body", [COUNT, floats(2)], turn)

    def outer(b: Builder, i: Value, x: Value) -> list[Value]:
        return run_graphs(b, For(turns=3, carried=1, reverse=True), [x], body)

    around = graph("for_2_body", [COUNT, floats(2)], outer)
    main = graph("main", [floats(2)], lambda b, x: run_graphs(b, For(turns=2, carried=1), [x], around))
    error = failure_of(lambda: executor(main).run([numbers(1, 2)]))
    message = "Broken failed on rank 0 in step 1 in turn 2 of For in turn 0 of For: ValueError: the kernel is broken"
    assert error.message == message
    assert error.frames == WHERE
    assert error.notes[0] == f"its operands are ({floats(2)}), its result {floats(2)}"


@pytest.mark.parametrize(("start", "where"), [(10, "in turn 0, there in turn 2"), (100, "in turn 1, there in turn 0")])
def test_the_first_node_that_makes_a_nan_is_named_with_its_turns(start: float, where: str) -> None:
    def turn(b: Builder, i: Value, x: Value) -> list[Value]:
        found = b.emit(Log(), b.emit(Sub(), x, one()))
        found.frames = WHERE
        return [found]

    inner = graph("for_1_body", [COUNT, SCALAR], turn)
    op = For(turns=3, carried=1)
    body = graph("for_2_body", [COUNT, SCALAR], lambda b, i, x: run_graphs(b, op, [x], inner))

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        (loss,) = run_graphs(b, For(turns=2, carried=1), [x], body)
        b.emit(Assign(), w, one())
        return [loss]

    weight = np.zeros((), np.float32)
    run = executor(graph("main", [SCALAR, SCALAR], main, ["w"]), {"w": weight})
    error = failure_of(run.run, [np.float32(start)])
    assert error.message == (f"the loss of step 1 is NaN on rank 0; the first such value comes from Log, {where}")
    assert error.frames == WHERE
    assert weight == 0
    with pytest.raises(ExecutionError, match="step 2"):
        run.run([np.float32(start)])


def test_a_stack_of_another_length_is_refused() -> None:
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    forward = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, one()), x])
    body = graph("for_2_body", [COUNT, SCALAR, SCALAR], lambda b, _, total, x: [b.emit(Sub(), x, total)])

    def main(b: Builder, x: Value) -> list[Value]:
        _, _, stack = run_graphs(b, While(carried=1, stacked=1), [x, one(4)], condition, forward)
        return run_graphs(b, For(carried=1, scanned=1), [Constant(np.int64(2)), one(), stack], body)

    with pytest.raises(ExecutionError, match="For has 2 turns and scans a stack of 3 entries"):
        executor(graph("main", [SCALAR], main)).run([np.float32(1)])


INPUTS = ("x", "limit")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.float32(1), limit=np.float32(5.5))
    return path


def test_a_loop_runs_from_its_text(tmp_path: Path, data: Path) -> None:
    folder = write_program(tmp_path / "out", [counting_up()], INPUTS)
    run_directory(folder, data=data, save_outputs=tmp_path / "found.npz")
    assert np.load(tmp_path / "found.npz")["output0"] == 6


def test_a_loop_without_end_is_stopped_and_named(tmp_path: Path, data: Path) -> None:
    folder = write_program(tmp_path / "out", [counting_up(body=STAYS)], INPUTS)
    error = failure_of(run_directory, folder, data=data, wishes=DeviceOptions(timeout=0.3))
    assert error.message.startswith("While failed on rank 0 in step 1: it has run for more than 0.3 s, ")
    assert error.message.endswith(" turns so far, and its condition still holds")
    assert str(error.frames[0]).startswith("net.py:7")


def test_a_failure_inside_has_its_line(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank reads source lines only when it needs them."""
    shown = GROWS.replace("%0 = Add(%para5_x, Tensor(shape=[], dtype=Float32, value=1))", (
        "%0 = Print(%para5_x) primitive_attrs: {lines: (\"{}\")}"
    )).replace("(<Tensor[Float32], ()>, <Tensor[Float32], ()>) ->", "(<Tensor[Float32], ()>) ->")  # fmt: skip
    folder = write_program(tmp_path / "out", [counting_up(body=shown, more=", has_side_effect: true")], INPUTS)
    monkeypatch.setattr("mspc.ops.control.print._filled", lambda line, arrays: 1 / 0)
    error = failure_of(run_directory, folder, data=data)
    assert error.message.startswith("Print failed on rank 0 in step 1 in turn 0 of While: ")
    assert str(error.frames[0]).startswith("net.py:8")


def test_graphs_that_no_node_runs_are_refused(tmp_path: Path, data: Path) -> None:
    text = counting_up()
    region = text[text.index("%para3_x: <") : text.index("%para5_x: <")]
    surplus = region.replace("para3", "para7").replace("para4", "para8").replace("@condition", "@surplus")
    text = text.replace("subgraph: 3", "subgraph: 4") + "\n" + surplus
    with pytest.raises(MspcError, match="surplus"):
        run_directory(write_program(tmp_path / "out", [text], INPUTS), data=data)


def run_on_two_ranks(folder: Path, data: Path) -> subprocess.CompletedProcess[str]:
    line = [find_mpirun(), "-n", "2", "--oversubscribe", "--bind-to", "none", *SERVED, "run", str(folder)]
    line += ["--data", str(data), "--save-outputs", str(folder / "found.npz")]
    return run_process(*line, env=mpirun_environment())


def on_two_ranks(tmp_path: Path, *by: int) -> Path:
    texts = [
        counting_up(rank, 2, growing_together(number), ", has_side_effect: true, is_collective: true")
        for rank, number in enumerate(by)
    ]
    return write_program(tmp_path / "out", texts, INPUTS)


def test_ranks_meet_inside_of_a_loop(tmp_path: Path, data: Path) -> None:
    folder = on_two_ranks(tmp_path, 1, 1)
    done = run_on_two_ranks(folder, data)
    assert done.returncode == 0, done.stderr
    assert np.load(folder / "found.npz")["output0"] == 7  # 1, 3, 7


def test_ranks_whose_turns_differ_are_named_and_none_hangs(tmp_path: Path, data: Path) -> None:
    done = run_on_two_ranks(on_two_ranks(tmp_path, 1, 5), data)  # 1, 3, 7 and, once they have met, 1, 7
    assert done.returncode == 1, done.stderr
    told = "net.py:7:9: error: rank 1 has left While after 1 turn, but rank 0 is in step 1, at While, in turn 1"
    assert told in done.stderr
    assert "ranks 0, 1 meet inside: there a condition or a number of turns must be the same" in done.stderr


SEEDS = range(80)
STEPS = 2


def evaluated(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """The results of a graph; every value is an array of its own, but for parameters, which are overwritten."""
    values: dict[Value, Any] = dict(zip(graph.parameters, operands, strict=True))

    def of(value: Value) -> Any:
        return value.value if isinstance(value, Constant) else values[value]

    for node in graph.nodes:
        op: Any = node.op
        given = [of(value) for value in node.inputs]
        if node.regions:
            values[node] = region_results(node, given, evaluated)
        else:
            values[node] = copy_value(op.kernel(NumPyBackend(OneRank()))(*given))
    return [copy_value(of(value)) for value in graph.results]


def check(made: RandomRegions, seed: int, planned_from: int) -> None:
    """Steps with other inputs each, on parameters that go from one to the next."""
    graph = made.graph
    generator = np.random.default_rng(seed)
    stored = {p: generator.random(p.shape) - 0.5 for p in graph.parameters if p.kind == "parameter"}
    plain = {p: array.copy() for p, array in stored.items()}
    run = Executor(graph, NumPyBackend(OneRank(), planned_from=planned_from), {p.name: a for p, a in stored.items()})
    held = []
    for _ in range(STEPS):
        x, n, k = generator.random(run.inputs[0].shape), *generator.integers(0, 4, 2)
        fed = dict(zip(run.inputs, (x, np.asarray(n), np.asarray(k)), strict=True))
        wanted = evaluated(graph, [plain[p] if p in plain else fed[p].copy() for p in graph.parameters])
        found = run.run(list(fed.values()))
        held.append((found, wanted))
        for parameter, array in plain.items():
            np.testing.assert_array_equal(stored[parameter], array, parameter.name)
    for found, wanted in held:  # what was handed out stays as it was
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_values(seed: int) -> None:
    for planned_from in (0, 1 << 60):
        check(RandomRegions(seed, "stand_alone"), seed, planned_from)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_gradients(seed: int) -> None:
    for planned_from in (0, 1 << 60):
        made = RandomRegions(seed, "stand_alone", differentiated=True)
        Grad().run(made.graph)
        check(made, seed, planned_from)


ROWS = floats(64, 64)
BYTES = ROWS.nbytes


def layer(b: Builder, x: Value, w: Value) -> list[Value]:
    """Its first product is alive beside its second one."""
    first = b.emit(MatMul(), x, w)
    second = b.emit(MatMul(), first, w)
    return [b.emit(MatMul(), first, second)]


def test_a_call_takes_what_its_nodes_take() -> None:
    shared = graph("layer", [ROWS, ROWS], layer)
    called = graph("main", [ROWS, ROWS], lambda b, *values: run_graphs(b, Call(), values, shared))
    flat = graph("main", [ROWS, ROWS], layer)
    assert plan_memory(called).arena == plan_memory(flat).arena == 3 * BYTES
    assert peak_of(called) == plan_memory(called).peak == 5 * BYTES
    assert plan_memory(called).temporary + plan_memory(called).activations >= 3 * BYTES


def test_calls_of_one_graph_take_turns() -> None:
    shared = graph("layer", [ROWS, ROWS], layer)

    def main(b: Builder, x: Value, w: Value) -> list[Value]:
        for _ in range(4):
            (x,) = run_graphs(b, Call(), [x, w], shared)
        return [x]

    assert plan_memory(graph("main", [ROWS, ROWS], main)).arena == 4 * BYTES  # what a call is given, and three inside


def test_a_choice_takes_what_its_larger_branch_takes() -> None:
    then = graph("then", [ROWS, ROWS], layer)
    otherwise = graph("else", [ROWS, ROWS], lambda b, x, w: [b.emit(MatMul(), x, w)])
    main = graph("main", [TensorType(BOOL, ()), ROWS, ROWS], lambda b, *v: run_graphs(b, If(), v, then, otherwise))
    assert plan_memory(main).arena == 3 * BYTES


def test_a_loop_takes_a_turn_and_what_the_turn_before_has_left() -> None:
    for turns, rooms in ((1, 3), (2, 4), (50, 4)):
        body = graph("body", [ROWS, ROWS], layer)
        main = graph("main", [ROWS, ROWS], lambda b, *v, t=turns, g=body: run_graphs(b, Scan(turns=t, carried=1), v, g))
        assert plan_memory(main).arena == rooms * BYTES


def test_what_every_turn_leaves_is_counted_for_all_of_them() -> None:
    body = graph("body", [COUNT, ROWS], lambda b, i, x: [b.emit(Square(), x), b.emit(MatMul(), x, x)])
    main = graph("main", [ROWS], lambda b, x: run_graphs(b, For(turns=9, carried=1, stacked=1), [x], body))
    assert plan_memory(main).arena == (1 + 9) * BYTES + BYTES + BYTES  # results, the turn before's, an entry


def test_constants_inside_are_counted_once() -> None:
    number = Constant(1.0, ROWS.dtype)
    body = graph("body", [ROWS], lambda b, x: [b.emit(Square(), x), number])
    plain = graph("main", [ROWS], lambda b, x: run_graphs(b, Scan(turns=2, carried=1, stacked=1), [x], body))
    assert plan_memory(plain).constants == 4


BOTH = AllReduce(rank_list=(0, 1))
ONE = Constant(np.float32(1))


def on_ranks(main: Graph, inputs: Callable[[int], Sequence[Any]], ranks: int = 2) -> list[list[Any]]:
    """The results of two steps on every rank."""

    def body(comm: Any) -> list[Any]:
        executor = Executor(main, NumPyBackend(comm), {})
        found: list[Any] = []
        for _ in range(2):
            found += executor.run(inputs(comm.rank))
        return found

    return World(ranks).run(body)


def memory_counting_up(behind: bool) -> Graph:
    """x grows by the sum of ones of all ranks while it is below a limit; behind the loop ranks meet once more."""
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, b.emit(BOTH, ONE))])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        (found,) = run_graphs(b, While(carried=1), [x, limit], condition, body)
        return [b.emit(BOTH, found)] if behind else [found]

    return graph("main", types, main)


def test_collectives_inside_of_a_loop() -> None:
    found = on_ranks(memory_counting_up(behind=True), lambda rank: [np.float32(1), np.float32(8)])
    assert found == [[18, 18], [18, 18]]  # 1, 3, 5, 7, 9 on both


@pytest.mark.parametrize("behind", [False, True])
def test_a_loop_whose_turns_differ_between_ranks_is_named(behind: bool) -> None:
    error = failure_of(on_ranks, memory_counting_up(behind), lambda rank: [np.float32(1), np.float32(6 - 4 * rank)])
    assert error.message == (
        "While failed on rank 1 in step 1: "
        "rank 1 has left While after 1 turn, but rank 0 waits in AllReduce(sum) with ranks 1"
    )
    assert error.notes[0] == (
        "ranks 0, 1 meet inside: there a condition or a number of turns must be the same on all of them"
    )


def test_a_count_that_differs_between_ranks_is_refused_ahead_of_the_loop() -> None:
    body = graph("for_1_body", [COUNT, SCALAR], lambda b, i, x: [b.emit(Add(), x, b.emit(BOTH, ONE))])
    main = graph("main", [COUNT, SCALAR], lambda b, *values: run_graphs(b, For(carried=1), values, body))
    assert on_ranks(main, lambda rank: [np.int64(2), np.float32(0)]) == [[4, 4], [4, 4]]
    error = failure_of(on_ranks, main, lambda rank: [np.int64(rank + 1), np.float32(0)])
    assert "rank 0 has 1 turn of For, but rank 1 has 2 turns of For" in error.message


def test_a_condition_that_differs_between_ranks_is_refused_ahead_of_the_branch() -> None:
    then = graph("if_1_then", [SCALAR], lambda b, x: [b.emit(BOTH, x)])
    otherwise = graph("if_1_else", [SCALAR], lambda b, x: [b.emit(Add(), x, x)])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        return run_graphs(b, If(), [b.emit(Less(), x, limit), x], then, otherwise)

    choice = graph("main", [SCALAR, SCALAR], main)
    assert on_ranks(choice, lambda rank: [np.float32(rank), np.float32(2)]) == [[1, 1], [1, 1]]
    assert on_ranks(choice, lambda rank: [np.float32(rank), np.float32(0)]) == [[0, 0], [2, 2]]
    error = failure_of(on_ranks, choice, lambda rank: [np.float32(rank), np.float32(1)])
    told = "rank 0 has true as the condition of If, but rank 1 has false as the condition of If"
    assert error.message == f"If failed on rank 0 in step 1: {told}"


def test_ranks_that_meet_nobody_inside_may_differ() -> None:
    types = [SCALAR, SCALAR]
    condition = graph("while_1_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_1_body", types, lambda b, x, limit: [b.emit(Add(), x, ONE)])

    def main(b: Builder, x: Value, limit: Value) -> list[Value]:
        return [b.emit(BOTH, *run_graphs(b, While(carried=1), [x, limit], condition, body))]

    found = on_ranks(graph("main", types, main), lambda rank: [np.float32(0), np.float32(3 + 4 * rank)])
    assert found == [[10, 10], [10, 10]]


def test_a_loop_in_one_rank_and_a_branch_in_another_are_told_apart() -> None:
    """Rank 1 leaves the outer loop while rank 0 comes to the branch inside of it once more."""
    types = [SCALAR, SCALAR]
    then = graph("if_1_then", [SCALAR], lambda b, x: [b.emit(BOTH, x)])
    otherwise = graph("if_1_else", [SCALAR], lambda b, x: [x])

    def turn(b: Builder, x: Value, limit: Value) -> list[Value]:
        (found,) = run_graphs(b, If(), [b.emit(Less(), x, Constant(np.float32(9))), ONE], then, otherwise)
        return [b.emit(Add(), x, found)]

    condition = graph("while_2_condition", types, lambda b, x, limit: [b.emit(Less(), x, limit)])
    body = graph("while_2_body", types, turn)
    main = graph("main", types, lambda b, *values: run_graphs(b, While(carried=1), values, condition, body))
    error = failure_of(on_ranks, main, lambda rank: [np.float32(0), np.float32(8 - 4 * rank)])
    told = "rank 0 has true as the condition of If, but rank 1 has left While after 2 turns"
    assert error.message == f"If failed on rank 0 in step 1 in turn 2 of While: {told}"

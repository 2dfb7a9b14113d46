"""`print()` in a network prints when it runs, in the order of the program, where the program comes by it, and once.

Gradients with respect to integers: of their type, by the same rules as those of floats, as MindSpore 2.10 has them.

The expected values were read off MindSpore 2.10.0 in both modes, but for `quarter`, where it hands back Float32: here a
gradient has the type of what it belongs to.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.commands.run import run_script
from mspc.compiler.frontend.trace import trace
from tests.graphs import FLOAT32, REGISTRY, TensorType, parse, print_graph
from tests.texts import IMPORTS

X = TensorType(FLOAT32, (2,))


def vector(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    return lambda: capsys.readouterr().out.splitlines()


def straight(x: Any) -> Any:
    y = x + 1
    print("y", y, y.shape, y.dtype, flush=True)
    print()
    print(y.sum(), (1, "a", y.max()), None)
    return y


def branches(x: Any) -> Any:
    if x.sum() > 0:
        print("above")
        x = x * 2
    else:
        print("below", x.sum())
    print("behind")
    return x


def loops(x: Any, n: Any) -> Any:
    while n < 2:
        for i in range(2):
            print(n, i)
        n = n + 1
    return x + n


def test_every_value_has_a_line(lines: Callable[[], list[str]]) -> None:
    run = ms.jit(straight)
    for _ in range(2):
        assert run(vector(1, 2)).asnumpy().tolist() == [2.0, 3.0]
        assert lines() == ["y", "Tensor(shape=[2], dtype=Float32, value=[2., 3.])", "(2,)", "Float32", "",
                           "5.0", "(1, 'a', 3.0)", "None"]  # fmt: skip


class Recomputed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(np.ones((2,), np.float32), "w")

    def construct(self, x: Any, n: Any) -> Any:
        print("cell")
        while n < 2:
            x = ops.tanh(x * self.w)
            print("turn", n)
            n = n + 1
        return x


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_and_recomputation_print_nothing_again(lines: Callable[[], list[str]], recompute: bool) -> None:
    net = Recomputed()
    if recompute:
        net.recompute()
    found = ms.value_and_grad(lambda x, n: net(x, n).sum(), None, net.trainable_params())(vector(1, 2), Tensor(0))
    assert float(found[1][0].asnumpy().sum()) > 0
    assert lines() == ["cell", "turn", "0", "turn", "1"]


def test_it_is_an_operator_that_reads_back() -> None:
    for target, types in ((straight, (X,)), (branches, (X,)), (loops, (X, TensorType(FLOAT32, ())))):
        traced = trace(target, types, script_folder=str(Path(__file__).parent))
        text = print_graph(traced.graph)
        assert "Print(" in text
        assert print_graph(parse(text, REGISTRY).main) == text
        assert traced.warnings == []


def test_what_changes_nothing_is_said() -> None:
    def network(x: Any) -> Any:
        print(x, sep="-", end="")
        return x

    (end, sep) = trace(network, (X,), script_folder=str(Path(__file__).parent)).warnings
    assert end.endswith("end changes nothing, every value has a line of its own")
    assert sep.endswith("sep changes nothing, every value has a line of its own")


def test_it_is_ignored_for_files() -> None:
    import sys

    def network(x: Any) -> Any:
        print("x", x, file=sys.stderr)
        return x

    traced = trace(network, (X,), script_folder=str(Path(__file__).parent))
    assert [warning.split("warning: ")[1] for warning in traced.warnings] == [
        "print() to a file inside a compiled function is ignored"
    ]
    assert traced.graph.nodes == []


SCRIPT = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.relu = ops.ReLU().shard(((2,),))

    def construct(self, x):
        x = self.relu(x)
        print(x, x * 2)
        return x

Net()(Tensor(np.arange(4), ms.float32))
"""


def test_a_rank_prints_its_slices(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    script = tmp_path / "slices.py"
    script.write_text(SCRIPT)
    run_script(script, 2, simulate=True)
    shown = "Tensor(shape=[2], dtype=Float32, value=[{}])"
    assert sorted(line for line in lines() if line.startswith("Tensor")) == sorted(
        shown.format(values) for values in ("0., 1.", "2., 3.", "0., 2.", "4., 6.")
    )


I, J = Tensor(np.array([3, 2]), ms.int32), Tensor(np.array([5, 7]), ms.int32)  # noqa: E741
F = Tensor(np.array([1.5, 2.5]), ms.float32)
B = Tensor(np.array([True, False]))


def doubled(x: Any) -> Any:
    return (x * 2).sum()


def product(x: Any, y: Any) -> Any:
    return (x * y).sum()


def widened(x: Any) -> Any:
    return (x.astype(ms.float32) * 1.7).sum()


def quarter(x: Any) -> Any:
    return x / 4


def chosen(x: Any, i: Any) -> Any:
    return ops.gather(x, i, 0).sum()


def hot(x: Any) -> Any:
    return ops.one_hot(x, 4, Tensor(1.0), Tensor(0.0)).sum()


@pytest.mark.parametrize(("function", "arguments", "expected"), [
    (doubled, (I,), [[2, 2]]),
    (lambda x: x * x, (I,), [[6, 4]]),
    (lambda x: x + x, (Tensor(np.array([3, 2]), ms.int8),), [[2, 2]]),
    (lambda x: -x, (I,), [[-1, -1]]),
    (lambda x: ops.abs(x), (I,), [[1, 1]]),
    (lambda x: ops.maximum(x, 2), (I,), [[1, 0]]),
    (lambda x: ops.concat((x, x))[1:3], (I,), [[1, 1]]),
    (lambda x: ops.matmul(x, x), (Tensor(np.array([[3, 2], [1, 4]]), ms.int32),), [[[9, 9], [11, 11]]]),
    (product, (I, F), [[1, 2], [3.0, 2.0]]),
    (product, (I, J), [[5, 7], [3, 2]]),
    (widened, (Tensor(np.array([3, 2]), ms.int64),), [[1, 1]]),
    (quarter, (I,), [[0, 0]]),
    (lambda x: x // 2, (I,), [[0, 0]]),
    (lambda x: x > 2, (I,), [[0, 0]]),
    (lambda x: ops.argmax(x), (I,), [[0, 0]]),
    (hot, (I,), [[0, 0]]),
    (lambda x: ops.stop_gradient(x) * 2, (I,), [[0, 0]]),
    (chosen, (F, Tensor(np.array([0, 1]), ms.int32)), [[1.0, 1.0], [0, 0]]),
    (lambda x: x.astype(ms.float32).sum(), (B,), [[True, True]]),
    (lambda x: ops.logical_not(x), (B,), [[False, False]]),
    (lambda x, y: (x * 2, y * 3), (I, F), [[2, 2], [3.0, 3.0]]),
])  # fmt: skip
def test_values_and_types(function: Callable[..., Any], arguments: tuple[Tensor, ...], expected: list[Any]) -> None:
    found = ms.grad(function, tuple(range(len(arguments))))(*arguments)
    for gradient, argument, value in zip(found, arguments, expected, strict=True):
        assert gradient.dtype == argument.dtype
        np.testing.assert_array_equal(gradient.asnumpy(), np.array(value))


def test_all_arguments_are_those_that_are_tensors() -> None:
    found = ops.GradOperation(get_all=True)(lambda x, y, z: x * y * z)(F, I, 4)
    assert [each.dtype for each in found] == [ms.float32, ms.int32]
    np.testing.assert_array_equal(found[0].asnumpy(), [12, 8])
    np.testing.assert_array_equal(found[1].asnumpy(), [6, 10])


def test_a_sensitivity_and_the_value() -> None:
    found = ops.GradOperation(sens_param=True)(lambda x: x * x)(I, J)
    np.testing.assert_array_equal(found.asnumpy(), [30, 28])
    value, gradient = ms.value_and_grad(lambda x: x * x)(I)
    np.testing.assert_array_equal(value.asnumpy(), [9, 4])
    np.testing.assert_array_equal(gradient.asnumpy(), [6, 4])


def test_floats_alone_get_nothing_through_integers() -> None:
    found = ms.grad(lambda x: (x.astype(ms.int32) * x).sum())(F)
    np.testing.assert_array_equal(found.asnumpy(), [1, 2])

"""Operators whose function the script gives (`Custom`), and gradients that it gives: its own, and those of cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.run import run_script
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.mindspore_api.common.api import _cell_graph_executor
from tests.compiler.test_operator_strategies import HEAD

NETWORK = (
    HEAD
    + """
def scaled(x, ws, factor):
    return x * ws[0] + ws[1].sum(-1, keepdims=True) * factor

def scaled_gradient(x, ws, factor, out, dout):
    return dout * ws[0], (dout * x, ops.broadcast_to(ops.reduce_sum(dout, 1, True) * factor, ws[1].shape)), 0

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.v = Parameter(tensor(8, 16), "w"), Parameter(tensor(8, 4), "v")
        self.custom = ops.Custom(scaled, lambda x, ws, f: x, lambda x, ws, f: x, "pyfunc", scaled_gradient)
        {shard}
    def construct(self, x):
        return ops.sin(self.custom(ops.exp(x), (self.w, self.v), 2.0))
net = Net()
ms.value_and_grad(net, 0, net.trainable_params())(tensor(8, 16))
"""
)
SHARDS = {
    "nothing": "pass",
    "numbers": "self.custom.shard(((4, 1), ((4, 1), (4, 1)), ()))",
    "layouts": "self.custom.shard((layout('dp', 'None'), (layout('dp', 'None'), layout('dp', 'None')), layout()),"
    " (layout('dp', 'None'),))",
    "two axes in one dimension": "self.custom.shard((layout(('mp', 'dp'), 'None'),) +"
    " ((layout(('mp', 'dp'), 'None'),) * 2,), (layout(('mp', 'dp'), 'None'),))",
}


@pytest.mark.parametrize("shard", SHARDS.values(), ids=SHARDS)
def test_slices_give_what_all_of_it_gives(tmp_path: Path, shard: str) -> None:
    script = tmp_path / "net.py"
    script.write_text(NETWORK.format(shard=shard))
    verify_target(str(script), CompileOptions(), seed=1)


def _grads(cell: nn.Cell, *args: Tensor) -> list[np.ndarray]:
    found = ms.grad(cell, tuple(range(len(args))))(*args)
    return [grad.asnumpy() for grad in (found if isinstance(found, tuple) else (found,))]


class Doubled(nn.Cell):
    def construct(self, x, y):
        return x * y, x - y

    def bprop(self, x, y, out, dout):
        return dout[0] * 2 + out[0], dout[1] * 3


class Around(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Doubled()

    def construct(self, x):
        product, difference = self.inner(x, x * x)
        return (product**2).sum() + (difference * x).sum()


def test_the_gradient_of_a_cell_is_its_own() -> None:
    x = np.array([1.0, 2.0, -0.5], np.float32)
    product, dproduct, ddifference = x**3, 2 * x**3, x
    expected = 2 * dproduct + product + 3 * ddifference * 2 * x + (x - x * x)
    np.testing.assert_allclose(_grads(Around(), Tensor(x))[0], expected, rtol=1e-6)
    np.testing.assert_allclose(Around()(Tensor(x)).asnumpy(), (x**6).sum() + ((x - x * x) * x).sum(), rtol=1e-6)


def test_a_gradient_that_is_given_is_differentiated_again() -> None:
    class Cubed(nn.Cell):
        def construct(self, x):
            return x * x * x

        def bprop(self, x, out, dout):
            return dout * 4 * x * x

    x = Tensor(np.array([1.0, 2.0], np.float32))
    np.testing.assert_allclose(ms.grad(ms.grad(Cubed()))(x).asnumpy(), [8.0, 16.0])


def test_no_operator_of_a_gradient_is_left_where_none_is_taken() -> None:
    phase, _ = _cell_graph_executor.compile(Around(), Tensor(np.ones(3, np.float32)))
    names = [name.partition("-")[0] for name in _cell_graph_executor.get_parallel_graph_info(phase)["@graph_0"]]
    assert not {"OwnGradient", "GradientPlaceholder"} & {*names}
    assert names.count("Mul") == 3  # x * x, x * y, difference * x


def _custom(function, shape=lambda x: x, dtype=lambda x: x, **named):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.custom = ops.Custom(function, shape, dtype, **named)

        def construct(self, x):
            return self.custom(x)

    return Net()


def test_results_have_the_shapes_and_types_that_are_said() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    split = _custom(lambda x: (x[0], x.argmax(-1)), lambda x: ((x[1],), (x[0],)), (ms.float32, ms.int32))
    first, places = split(x)
    assert (first.asnumpy().tolist(), places.asnumpy().tolist()) == ([0.0, 1.0, 2.0], [2, 2])
    assert (first.dtype, places.dtype) == (ms.float32, ms.int32)
    assert ops.Custom(np.cos, (2, 3), ms.float32)(x).asnumpy().tolist() == np.cos(x.asnumpy()).tolist()


WRONG = {
    "no shape": (
        dict(function=np.cos, shape=3), TypeError, "Custom: out_shape must be a tuple, a list or a function, not 3",
    ),
    "no sizes": (dict(function=np.cos, shape=(1.5,)), TypeError, "Custom: out_shape says (1.5,), which is no shape"),
    "no type": (
        dict(function=np.cos, dtype=None), TypeError,
        "Custom: out_dtype must be an element type for each of 1 results, or a function, not None",
    ),
    "another shape": (
        dict(function=np.sum), ExecutionError,
        "Custom: sum returned an array of shape (), not (4,) as its out_shape says of these slices",
    ),
    "too few": (
        dict(function=lambda x: x, shape=lambda x: (x, x)), ExecutionError,
        "<lambda> must return 2 arrays",
    ),
    "gradient": (
        dict(function=np.cos, bprop=lambda x, out, dout: dout.sum()), ValueError,
        "bprop returns a gradient of shape () for argument 0, which has shape (4,)",
    ),
    "gradients": (
        dict(function=np.cos, bprop=lambda x, out, dout: ()), TypeError, "bprop returns 0 gradients for 1 arguments",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "kind", "message"), WRONG.values(), ids=WRONG)
def test_wrong_functions_are_refused(given, kind, message) -> None:
    with pytest.raises(kind) as error:
        _custom(**given)(Tensor(np.ones(4, np.float32)))
    assert message in str(error.value)


@pytest.mark.parametrize(("given", "message"), [
    (dict(func_type="aot"), "Custom: func_type 'aot' compiles a kernel for one device, which is not built"),
    (dict(func_type="nope"), "Custom: func_type 'nope' is not one of 'hybrid', 'akg', 'tbe', 'aicpu', 'aot', 'pyfunc'"),
])  # fmt: skip
def test_other_kinds_are_refused(given, message) -> None:
    with pytest.raises(ValueError, match="Custom") as error:
        ops.Custom(np.cos, **given)
    assert error.value.message == message


def test_a_function_without_gradient_says_so() -> None:
    with pytest.raises(MspcError) as error:
        _grads(_custom(np.cos), Tensor(np.ones(4, np.float32)))
    assert "Custom has no gradient: its function is the script's; give Custom a bprop" in str(error.value)


@pytest.mark.parametrize(("shard", "message"), [
    ("self.custom.shard(((4, 1), ((4, 1), (4, 2)), ()))",
     "Custom: dimension 1 of input 2 is sharded, and no dimension of a result with it"),
    ("self.custom.shard(((4, 1), ((4, 1), (4, 1))), ((4, 2),))",
     "Custom: dimension 1 of result 0 is sharded, and no dimension of an input with it"),
    ("self.custom.shard((layout('dp', 'None'), (layout('dp', 'None'),) * 2), (layout('None', 'dp'),))",
     "Custom: one axis shards dimensions of sizes 8 and 16"),
    ("self.custom.shard(((4, 1),))", "Custom: in_strategy has 1 entries for 3 tensors"),
    ("self.custom.shard(((4,), ((4, 1), (4, 1))))", "Custom: the strategy of input 0 has 1 entries for 2 dimensions"),
])  # fmt: skip
def test_strategies_that_do_not_fit_are_refused(tmp_path: Path, shard: str, message: str) -> None:
    script = tmp_path / "net.py"
    script.write_text(NETWORK.format(shard=shard))
    with pytest.raises(RuntimeError) as error:
        run_script(script, 8, simulate=True)
    assert message in str(error.value)

"""Hooks on gradients are part of the backward graph: those of cells, tensors and parameters, and `HookBackward`.

Expected values are computed by hand; MindSpore 2.10 gives the same in PyNative mode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from tests.errors import error_of

X = Tensor(np.array([1, 2], np.float32))


class Scaled(nn.Cell):
    def __init__(self, first: float = 2.0) -> None:
        super().__init__()
        self.w = ms.Parameter(Tensor([first, 3.0]), name="w")

    def construct(self, x, y=None, k=1.0):
        out = x * self.w * k
        return out if y is None else (out + y, out * y)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def construct(self, x):
        return (self.inner(x) * 5).sum()


class Pair(Net):
    def construct(self, x):
        a, _ = self.inner(x, x * 2, 1.0)
        return (a * 3).sum()


def both(net: Any, x: Tensor = X) -> list[list[float]]:
    of_input, (of_weight,) = ms.grad(net, 0, [net.inner.w])(x)
    return [of_input.asnumpy().tolist(), of_weight.asnumpy().tolist()]


def with_hooks(behind: Any = None, before: Any = None, net: Any = Net) -> list[list[float]]:
    made = net()
    for hook in behind or ():
        made.inner.register_backward_hook(hook)
    for hook in before or ():
        made.inner.register_backward_pre_hook(hook)
    return both(made)


def test_hooks_of_cells_replace_gradients() -> None:
    assert with_hooks() == [[10, 15], [5, 10]]
    assert with_hooks([lambda cell, inputs, outputs: None]) == [[10, 15], [5, 10]]
    assert with_hooks([lambda cell, inputs, outputs: inputs[0] * 10]) == [[100, 150], [5, 10]]
    assert with_hooks(None, [lambda cell, outputs: outputs[0] * cell.w]) == [[20, 45], [10, 30]]
    added = [lambda c, inputs, outputs: (inputs[0] * 10,), lambda c, inputs, outputs: (inputs[0] + outputs[0],)]
    assert with_hooks(added) == [[105, 155], [5, 10]]
    assert with_hooks(None, [lambda cell, outputs: (outputs[0] * 10,)]) == [[100, 150], [50, 100]]
    assert with_hooks([lambda c, i, o: i[0] + o[0]], [lambda c, o: o[0] * 10]) == [[150, 200], [50, 100]]
    assert with_hooks([lambda c, i, o: (i[0] * 2, i[1] + o[0])], net=Pair) == [[24, 30], [3, 6]]


def test_hooks_of_cells_print_in_order_and_are_removed(capfd: pytest.CaptureFixture[str]) -> None:
    net = Net()
    handle = net.inner.register_backward_hook(lambda cell, inputs, outputs: print("in", inputs[0], "out", outputs[0]))
    net.inner.register_backward_pre_hook(lambda cell, outputs: print("before"))
    net(X)
    assert capfd.readouterr().out == ""
    net_grad = ms.grad(net)
    net_grad(X)
    lines = capfd.readouterr().out.split("\n")
    assert [line.split("value=")[-1] for line in lines] == ["before", "in", "[10., 15.])", "out", "[5., 5.])", ""]
    handle.remove()
    net_grad(X)
    assert capfd.readouterr().out == "before\n"


def test_hooks_of_cells_in_loops_and_layers() -> None:
    class Looped(Net):
        def construct(self, x):
            i = Tensor(0)
            while i < 3:
                x = self.inner(x)
                i += 1
            return x.sum()

    net = Looped()
    net.inner.register_backward_hook(lambda cell, inputs, outputs: (inputs[0] + outputs[0],))
    assert ms.grad(net)(X).asnumpy().tolist() == [27, 64]  # (w + 1)**3

    class Layers(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([Scaled(float(i)) for i in range(4)])
            for i, layer in enumerate(self.layers):
                layer.w.name = f"w{i}"
                layer.register_backward_hook(lambda cell, inputs, outputs, factor=i: (inputs[0] + outputs[0] * factor,))

        def construct(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.sum()

    assert ms.grad(Layers())(X).asnumpy().tolist() == [0 * 2 * 4 * 6, 3 * 4 * 5 * 6]


def test_hooks_of_cells_train(capfd: pytest.CaptureFixture[str]) -> None:
    net = Net()
    net.inner.register_backward_pre_hook(lambda cell, outputs: ops.clip_by_value(outputs[0], -1.0, 1.0))
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5))
    step(X)
    assert net.inner.w.asnumpy().tolist() == [1.5, 2.0]


def of_tensor(hook: Any, second: Any = None, removes: bool = False) -> list[float]:
    def run(x):
        z = x * x
        before = z * 3
        handle = z.register_hook(hook)
        if second is not None:
            z.register_hook(second)
        if removes:
            handle.remove()
        return (before + z * 2).sum()

    return ms.grad(run)(X).asnumpy().tolist()


def test_hooks_of_tensors_take_whole_gradients() -> None:
    assert of_tensor(lambda grad: grad * grad) == [50, 100]
    assert of_tensor(lambda grad: grad * 2, lambda grad: grad + 1) == [22, 44]
    assert of_tensor(lambda grad: None) == [10, 20]
    assert of_tensor(lambda grad: grad * grad, removes=True) == [10, 20]
    assert of_tensor(lambda grad: grad * 2, lambda grad: grad + 1, removes=True) == [12, 24]

    def of_argument(x):
        x.register_hook(lambda grad: grad * 7)
        return (x * x).sum()

    assert ms.grad(of_argument)(X).asnumpy().tolist() == [14, 28]

    def of_inner(x):
        return (ms.grad(of_argument)(x * 2) * x).sum()

    assert of_inner(X).asnumpy().tolist() == 7 * 2 * 2 * (1 + 4)


def test_hooks_of_parameters_take_whole_gradients() -> None:
    p = ms.Parameter(Tensor([1.0, 2.0]), name="p")

    def run(a):
        return (p * a + p * 2).sum()

    def of() -> list[float]:
        return ms.grad(run, None, [p])(X)[0].asnumpy().tolist()

    first = p.register_hook(lambda grad: grad * grad)
    assert of() == [9, 16]
    p.register_hook(lambda grad: grad + 1)
    p.register_hook(lambda grad: None)
    assert of() == [10, 17]
    first.remove()
    first.remove()
    assert of() == [4, 5]


def test_hook_backward(capfd: pytest.CaptureFixture[str]) -> None:
    def of(hook: Any) -> list[float]:
        hooked = ops.HookBackward(hook)
        return ms.grad(lambda x: hooked(x * x).sum())(X).asnumpy().tolist()

    assert of(lambda grads: print("grad", grads[0])) == [2, 4]
    assert "value=[1., 1.]" in capfd.readouterr().out
    assert of(lambda grads: grads[0] * 5) == [10, 20]
    two = ops.HookBackward(lambda grads: (grads[0] * 5, grads[1] * 7))

    def run(x):
        a, b = two(x * x, x * 2)
        return (a + b).sum()

    assert ms.grad(run)(X).asnumpy().tolist() == [24, 34]


def test_functions_of_gradients_print(capfd: pytest.CaptureFixture[str]) -> None:
    def shown(grads):
        print("gradient", grads[0])
        return grads[0] * 2

    insert = ops.HookBackward(shown)
    assert ms.grad(lambda x: insert(x * x).sum())(X).asnumpy().tolist() == [4, 8]
    assert capfd.readouterr().out.startswith("gradient\nTensor(")


def _assigning() -> Any:
    net = Net()

    def hook(cell, outputs):
        cell.w = cell.w + outputs[0]

    net.inner.register_backward_pre_hook(hook)
    return both(net)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Net().register_backward_hook(3), "Net: a hook must be a function, not 3"),
    (lambda: ops.HookBackward(3), "HookBackward: hook_fn must be a function, not 3"),
    (lambda: Net().inner.w.register_hook(3), "register_hook: hook must be a function, not 3"),
    (lambda: X.register_hook(print), "register_hook: this tensor is no part of a network"),
    (lambda: of_tensor("x"), "register_hook() takes a function, not 'x'"),
    (lambda: of_tensor(lambda grad: grad[0]),
     "the hook returns a gradient of shape () in place of one of shape (2,)"),
    (lambda: with_hooks([lambda cell, inputs, outputs: (inputs[0], inputs[0])]),
     "the backward hook of Scaled returns 2 gradients, and takes 1"),
    (lambda: with_hooks([lambda cell, inputs, outputs: inputs[0].asnumpy()]),
     "x.asnumpy needs the contents of a tensor, which are not known at compile time"),
    (_assigning, "a function of gradients must not change a parameter: it runs while gradients are computed"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Callable[[], Any], message: str) -> None:
    assert error_of(wrong).message == message


STATE_X = Tensor(np.array([[1.0, 2.0]], np.float32))


class Below(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor([1.0, 1.0]), name="weight")
        self.register_buffer("shift", Tensor([10.0, 20.0]))
        self.register_buffer("passing", Tensor([0.0, 0.0]), persistent=False)
        self.register_buffer("nothing", None)

    def construct(self, x):
        return x * self.weight + self.shift + self.passing


class StateNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.below = Below()
        self.register_buffer("factor", Tensor([2.0, 2.0]))

    def construct(self, x):
        return self.below(x) * self.factor


def of(net: Any) -> list[float]:
    return net(STATE_X).asnumpy()[0].tolist()


def test_names_of_what_a_cell_holds() -> None:
    net = StateNet()
    assert list(net.state_dict()) == ["factor", "below.weight", "below.shift"]
    assert list(net.state_dict(prefix="a.")) == ["a.factor", "a.below.weight", "a.below.shift"]
    assert [name for name, _ in net.named_buffers()] == ["factor", "below.shift", "below.passing"]
    assert [name for name, _ in net.named_buffers("a", recurse=False)] == ["a.factor"]
    assert [buffer.asnumpy().tolist() for buffer in net.below.buffers()] == [[10, 20], [0, 0]]
    assert net.get_sub_cell("below") is net.below
    assert [p.name for p in net.get_parameters()] == ["below.weight"]


def test_a_graph_has_the_buffers_of_now() -> None:
    net = StateNet()
    assert of(net) == [22, 44]
    net.below.shift = Tensor([0.0, 0.0])
    assert of(net) == [2, 4]
    net.set_train()
    assert of(net) == [2, 4]
    keys = net.load_state_dict({"factor": Tensor([3.0, 3.0]), "below.weight": np.array([2, 2])}, strict=False)
    assert keys == (["below.shift"], [])
    assert of(net) == [6, 12]


def test_states_go_through_a_file(tmp_path: Path) -> None:
    net, other = StateNet(), StateNet()
    net.below.shift = Tensor([5.0, 6.0])
    ms.save_checkpoint(net.state_dict(), str(tmp_path / "states"))
    other.load_state_dict(ms.load_checkpoint(str(next(tmp_path.iterdir()))))
    assert of(other) == of(net)


def test_hooks_are_part_of_networks() -> None:
    net = StateNet()
    handle = net.below.register_forward_hook(lambda cell, inputs, output: output + cell.weight * inputs[0])
    assert of(net) == [24, 48]
    first = net.below.register_forward_pre_hook(lambda cell, inputs: inputs[0] * 10)
    net.below.register_forward_pre_hook(lambda cell, inputs: (inputs[0] + 1,), prepend=True)
    assert of(net) == [2 * (10 + 20 + 20), 2 * (20 + 30 + 30)]
    assert ms.grad(net)(STATE_X).asnumpy().tolist() == [[40, 40]]
    first.remove()
    handle.remove()
    assert of(net) == [24, 46]


def test_hooks_that_see_named_arguments() -> None:
    class Scaled(nn.Cell):
        def construct(self, x, factor=1.0):
            return x * factor

    class Outer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled()

        def construct(self, x):
            return self.scaled(x, factor=3.0)

    net = Outer()
    net.scaled.register_forward_pre_hook(
        lambda cell, inputs, named: (inputs, {"factor": named["factor"] * 2}), with_kwargs=True
    )
    net.scaled.register_forward_hook(lambda cell, inputs, named, out: out + named["factor"], with_kwargs=True)
    assert of(net) == [12, 18]


def test_a_hook_that_only_looks_changes_nothing() -> None:
    net = StateNet()
    net.below.register_forward_hook(lambda cell, inputs, output: None)
    assert of(net) == [22, 44]


def test_flags_say_a_precision_and_are_attributes() -> None:
    net = StateNet()
    net.below.add_flags_recursive(fp16=True, first_time=True)
    assert net.below(STATE_X).dtype == ms.float16
    assert net.below.first_time is True
    net.below.add_flags(fp16=False, first_time=False)
    assert net.below(STATE_X).dtype == ms.float32
    assert net.below.first_time is False
    net.below.add_flags(recompute=False)
    assert callable(net.below.recompute)


STATE_MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: StateNet().register_buffer(3, STATE_X), "Cell.register_buffer: name must be a string, not 3"),
    (lambda: StateNet().register_buffer("a.b", STATE_X),
     "StateNet.register_buffer(): name must be neither empty nor have a dot, and is 'a.b'"),
    (lambda: StateNet().register_buffer("below", STATE_X), "StateNet.register_buffer(): there is an attribute 'below'"),
    (lambda: StateNet().register_buffer("a", 3), "StateNet.register_buffer(): tensor must be a Tensor or None, not 3"),
    (lambda: setattr(StateNet(), "factor", 3), "StateNet.factor is a buffer: a Tensor or None, not 3"),
    (lambda: StateNet().get_sub_cell("below.x"), "Below has no cell 'x'"),
    (lambda: StateNet().state_dict({}), "state_dict() takes destination, prefix and keep_vars by name"),
    (lambda: StateNet().load_state_dict(3), "load_state_dict(): state_dict must be a dict, not 3"),
    (lambda: StateNet().load_state_dict({"factor": STATE_X, "other": STATE_X}),
     "StateNet.load_state_dict(): missing: below.weight, below.shift; unknown: other; shapes differ: factor: (1, 2) "
     "for (2,)"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), STATE_MISTAKES, ids=range(len(STATE_MISTAKES)))
def test_mistakes_in_states_are_named(wrong: Callable[[], Any], message: str) -> None:
    assert error_of(wrong).message == message


def test_a_hook_is_read_as_construct_is() -> None:
    net = StateNet()
    net.below.register_forward_pre_hook(lambda cell, inputs, named: ops.relu(inputs[0]), with_kwargs=True)
    with pytest.raises(MspcError, match="a hook with_kwargs returns"):
        net(STATE_X)

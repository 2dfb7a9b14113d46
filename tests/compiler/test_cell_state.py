"""Buffers, states and hooks of cells: what graphs do with them, and what comes back by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

X = Tensor(np.array([[1.0, 2.0]], np.float32))


class Below(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor([1.0, 1.0]), name="weight")
        self.register_buffer("shift", Tensor([10.0, 20.0]))
        self.register_buffer("passing", Tensor([0.0, 0.0]), persistent=False)
        self.register_buffer("nothing", None)

    def construct(self, x):
        return x * self.weight + self.shift + self.passing


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.below = Below()
        self.register_buffer("factor", Tensor([2.0, 2.0]))

    def construct(self, x):
        return self.below(x) * self.factor


def of(net: Any) -> list[float]:
    return net(X).asnumpy()[0].tolist()


def test_names_of_what_a_cell_holds() -> None:
    net = Net()
    assert list(net.state_dict()) == ["factor", "below.weight", "below.shift"]
    assert list(net.state_dict(prefix="a.")) == ["a.factor", "a.below.weight", "a.below.shift"]
    assert [name for name, _ in net.named_buffers()] == ["factor", "below.shift", "below.passing"]
    assert [name for name, _ in net.named_buffers("a", recurse=False)] == ["a.factor"]
    assert [buffer.asnumpy().tolist() for buffer in net.below.buffers()] == [[10, 20], [0, 0]]
    assert net.get_sub_cell("below") is net.below
    assert [p.name for p in net.get_parameters()] == ["below.weight"]


def test_a_graph_has_the_buffers_of_now() -> None:
    net = Net()
    assert of(net) == [22, 44]
    net.below.shift = Tensor([0.0, 0.0])
    assert of(net) == [2, 4]
    net.set_train()
    assert of(net) == [2, 4]
    keys = net.load_state_dict({"factor": Tensor([3.0, 3.0]), "below.weight": np.array([2, 2])}, strict=False)
    assert keys == (["below.shift"], [])
    assert of(net) == [6, 12]


def test_states_go_through_a_file(tmp_path: Path) -> None:
    net, other = Net(), Net()
    net.below.shift = Tensor([5.0, 6.0])
    ms.save_checkpoint(net.state_dict(), str(tmp_path / "states"))
    other.load_state_dict(ms.load_checkpoint(str(next(tmp_path.iterdir()))))
    assert of(other) == of(net)


def test_hooks_are_part_of_networks() -> None:
    net = Net()
    handle = net.below.register_forward_hook(lambda cell, inputs, output: output + cell.weight * inputs[0])
    assert of(net) == [24, 48]
    first = net.below.register_forward_pre_hook(lambda cell, inputs: inputs[0] * 10)
    net.below.register_forward_pre_hook(lambda cell, inputs: (inputs[0] + 1,), prepend=True)
    assert of(net) == [2 * (10 + 20 + 20), 2 * (20 + 30 + 30)]
    assert ms.grad(net)(X).asnumpy().tolist() == [[40, 40]]
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
    net = Net()
    net.below.register_forward_hook(lambda cell, inputs, output: None)
    assert of(net) == [22, 44]


def test_flags_say_a_precision_and_are_attributes() -> None:
    net = Net()
    net.below.add_flags_recursive(fp16=True, first_time=True)
    assert net.below(X).dtype == ms.float16
    assert net.below.first_time is True
    net.below.add_flags(fp16=False, first_time=False)
    assert net.below(X).dtype == ms.float32
    assert net.below.first_time is False
    net.below.add_flags(recompute=False)
    assert callable(net.below.recompute)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Net().register_buffer(3, X), "Cell.register_buffer: name must be a string, not 3"),
    (lambda: Net().register_buffer("a.b", X),
     "Net.register_buffer(): name must be neither empty nor have a dot, and is 'a.b'"),
    (lambda: Net().register_buffer("below", X), "Net.register_buffer(): there is an attribute 'below'"),
    (lambda: Net().register_buffer("a", 3), "Net.register_buffer(): tensor must be a Tensor or None, not 3"),
    (lambda: setattr(Net(), "factor", 3), "Net.factor is a buffer: a Tensor or None, not 3"),
    (lambda: Net().get_sub_cell("below.x"), "Below has no cell 'x'"),
    (lambda: Net().state_dict({}), "state_dict() takes destination, prefix and keep_vars by name"),
    (lambda: Net().load_state_dict(3), "load_state_dict(): state_dict must be a dict, not 3"),
    (lambda: Net().load_state_dict({"factor": X, "other": X}),
     "Net.load_state_dict(): missing: below.weight, below.shift; unknown: other; shapes differ: factor: (1, 2) for "
     "(2,)"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as caught:
        wrong()
    assert caught.value.message == message


def test_a_hook_is_read_as_construct_is() -> None:
    net = Net()
    net.below.register_forward_pre_hook(lambda cell, inputs, named: ops.relu(inputs[0]), with_kwargs=True)
    with pytest.raises(MspcError, match="a hook with_kwargs returns"):
        net(X)

"""Arguments that can be given by name only, in calls of cells and of functions that `jit` compiles; what a compiled
function cannot do, and what to write instead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, jit, nn
from mspc.engine.calls import RankCalls

X = np.array([1.0, 2.0], np.float32)


@jit
def scaled(x: Any, *, s: Any = 2) -> Any:
    return x * s


@jit
def several(x: Any, y: Any = 1, *rest: Any, s: Any = 2, **more: Any) -> Any:
    return x * s + y + len(rest) + more.get("z", 0)


@jit
def required(x: Any, *, s: Any) -> Any:
    return x * s


class Scale(nn.Cell):
    def construct(self, x: Any, *, s: Any = 2) -> Any:
        return x * s


class Owner:
    def __init__(self) -> None:
        self.factor = 3.0

    @jit
    def scaled(self, x: Any, *, s: Any = 2) -> Any:
        return x * s * self.factor


CALLS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda x: scaled(x), X * 2),
    (lambda x: scaled(x, s=3), X * 3),
    (lambda x: scaled(x, s=Tensor(4.0)), X * 4),
    (lambda x: several(x, s=3, z=4), X * 3 + 5),
    (lambda x: several(x, 2, 7, 8, s=5), X * 5 + 4),
    (lambda x: several(x, y=Tensor(2.0), s=Tensor(3.0)), X * 3 + 2),
    (lambda x: required(s=6, x=x), X * 6),
    (lambda x: Scale()(x, s=5), X * 5),
    (lambda x: nn.SequentialCell(Scale())(x), X * 2),
    (lambda x: Owner().scaled(x, s=2), X * 6),
]


@pytest.mark.parametrize("place", range(len(CALLS)))
def test_arguments_by_name(place: int) -> None:
    call, expected = CALLS[place]
    np.testing.assert_allclose(call(Tensor(X)).asnumpy(), expected, rtol=1e-6)


def test_calls_alike_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    build = RankCalls.build
    monkeypatch.setattr(RankCalls, "build", lambda self, *rest: found.append(rest) or build(self, *rest))
    net = Scale()
    for number in (1.0, 2.0):
        net(Tensor(X), s=Tensor(number))
    for _ in range(2):
        net(Tensor(X), s=7)
    assert len(found) == 2


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"required\(\) misses the argument 's'"):
        required(Tensor(X))


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (lambda x: x[x > 1], r"use ops\.select\(mask, x, other\)"),
        (lambda x: x.asnumpy().shape[0] * x, r"x\.shape, x\.dtype and x\.size are known"),
        (lambda x: x * x[0].item(), r"x \* y\[0\]"),
        (lambda x: x * len(x.tolist()), r"for row in x"),
    ],
)
def test_what_needs_values_says_what_to_write_instead(function: Callable[[Any], Any], instead: str) -> None:
    with pytest.raises(ms.MspcError, match=r"known at run time|not known at compile time") as refused:
        jit(function)(Tensor(X))
    assert refused.match(instead)

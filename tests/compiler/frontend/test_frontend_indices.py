"""Indices of tensors: what a compiled function reads and assigns by them is what NumPy does, gradients included."""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from interpret import run_global

import mspc
from mspc import Tensor, ops
from mspc.compiler.frontend.trace import trace
from tests.errors import error_of
from tests.graphs import REGISTRY, difference, parse, print_graph
from tests.shares import share_of

OFTEN = settings(max_examples=share_of(120), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Case:
    """A tensor and an index, whose strings "a" and "b" stand for arrays that are values of the graph."""

    x: np.ndarray
    index: tuple[Any, ...]
    a: np.ndarray
    b: np.ndarray

    @property
    def plain(self) -> tuple[Any, ...]:
        return tuple({"a": self.a, "b": self.b}[e] if isinstance(e, str) else e for e in self.index)

    @property
    def inputs(self) -> list[Tensor]:
        return [Tensor(self.x), Tensor(self.a), Tensor(self.b)]

    @property
    def chosen(self) -> np.ndarray:
        """The number of every element that the index chooses."""
        return np.arange(self.x.size).reshape(self.x.shape)[self.plain]


@st.composite
def cases(draw: Any) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    spread = draw(st.sampled_from([(), (3,), (2, 1), (2, 3), (1,)]))
    index: list[Any] = []
    graph: dict[str, np.ndarray] = {}
    dim = 0
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from("int slice slice array list graph mask none dots whole".split()))
        if kind == "none":
            index.append(None)
        elif kind == "dots" and Ellipsis not in [e for e in index if e is Ellipsis]:
            index.append(Ellipsis)
            dim = len(shape) - draw(st.integers(0, max(0, len(shape) - dim)))
        elif dim < len(shape):
            index.append(_entry(draw, kind, shape[dim:], spread, graph))
            dim += index[-1].ndim if isinstance(index[-1], np.ndarray) and index[-1].dtype == bool else 1
    x = draw(st.integers(0, 1000)) + np.arange(float(np.prod(shape))).reshape(shape)
    found = Case(x, tuple(index), graph.get("a", np.zeros(1, np.int64)), graph.get("b", np.zeros(1, np.int64)))
    try:
        assume(found.chosen.size)
    except IndexError:
        assume(False)
    return found


def _entry(draw: Any, kind: str, shape: tuple[int, ...], spread: tuple[int, ...], graph: dict[str, np.ndarray]) -> Any:
    size = shape[0]
    places = st.integers(-size, size - 1)
    if kind == "int":
        return draw(places)
    if kind == "slice":
        bound = st.none() | st.integers(-size - 1, size + 1)
        return draw(st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1, -2, 3])))
    if kind == "mask":
        named = shape[: draw(st.integers(1, len(shape)))]
        count = int(np.prod(named))
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(named)
    if kind in ("array", "list", "graph"):
        own = spread[draw(st.integers(0, len(spread))) :]
        values = np.array(draw(st.lists(places, min_size=int(np.prod(own)), max_size=int(np.prod(own)))), np.int64)
        array = values.reshape(own)
        if kind == "graph" and len(graph) < 2 and own:
            name = "ab"[len(graph)]
            graph[name] = array
            return name
        return array.tolist() if kind == "list" and own else array
    return slice(None)


def compiled(function: Any, inputs: list[Tensor]) -> np.ndarray:
    traced = trace(function, inputs)
    traced.graph.verify()
    names = [p.name for p in traced.graph.parameters if p.name not in traced.constants]
    feeds = dict(zip(names, [x.asnumpy() for x in inputs], strict=True)) | traced.constants
    return np.asarray(traced.rebuild(run_global(traced.graph, feeds)))


@OFTEN
@given(cases())
def test_reading(case: Case) -> None:
    index = case.index
    weights = np.random.default_rng(1).uniform(1, 2, case.chosen.shape)
    held = Tensor(weights)

    def read(x: Any, a: Any, b: Any) -> Any:
        return x[tuple([(a if e == "a" else b) if isinstance(e, str) else e for e in index])]

    def loss(x: Any, a: Any, b: Any) -> Any:
        return (read(x, a, b) * held).sum()

    np.testing.assert_array_equal(compiled(read, case.inputs), case.x[case.plain])
    expected = np.zeros_like(case.x)
    np.add.at(expected, case.plain, weights)
    np.testing.assert_allclose(ops.grad(loss)(*case.inputs).asnumpy(), expected)
    np.testing.assert_array_equal(Tensor(case.x)[case.plain].asnumpy(), case.x[case.plain])


@OFTEN
@given(cases(), st.data())
def test_assigning(case: Case, data: Any) -> None:
    index, shape = case.index, case.chosen.shape
    own_shape = shape[data.draw(st.integers(0, len(shape))) :]
    own_shape = tuple(n if data.draw(st.booleans()) else 1 for n in own_shape)
    value = -1.0 - np.arange(float(np.prod(own_shape))).reshape(own_shape)
    weights = np.random.default_rng(1).uniform(1, 2, case.x.shape)
    held = Tensor(weights)

    def assigned(x: Any, a: Any, b: Any, v: Any) -> Any:
        x[tuple([(a if e == "a" else b) if isinstance(e, str) else e for e in index])] = v
        return x

    def loss(x: Any, a: Any, b: Any, v: Any) -> Any:
        return (assigned(x, a, b, v) * held).sum()

    inputs = [*case.inputs, Tensor(value)]
    expected = case.x.copy()
    expected[case.plain] = value
    np.testing.assert_array_equal(compiled(assigned, inputs), expected)
    of_x, of_value = (grad.asnumpy() for grad in ops.grad(loss, (0, 3))(*inputs))
    written = np.isin(np.arange(case.x.size).reshape(case.x.shape), case.chosen)
    np.testing.assert_allclose(of_x, np.where(written, 0, weights))
    numbers = np.arange(case.chosen.size).reshape(shape)
    last = np.zeros(case.x.shape, np.int64)
    last[case.plain] = numbers  # of several for one element the last one is written
    taken = np.where(last[case.plain] == numbers, weights[case.plain], 0).sum(tuple(range(len(shape) - len(own_shape))))
    np.testing.assert_allclose(of_value, taken.sum(tuple(d for d, n in enumerate(own_shape) if n == 1), keepdims=True))
    eager = Tensor(case.x)
    eager[case.plain] = Tensor(value)
    np.testing.assert_array_equal(eager.asnumpy(), expected)


MASK = np.array([[True, False, True], [False, True, False]])


@pytest.mark.parametrize(("before", "behind", "value"), [
    ((), (), 5.0), ((), (), [1.0]), ((), (), [1.0, 2.0, 3.0]), ((), (2,), 7.5), ((), (2,), [[1.0], [2.0], [3.0]]),
    ((), (2,), [1.0, 2.0]), ((2,), (), [1.0, 2.0, 3.0]), ((2,), (), [[1.0], [2.0]]), ((2,), (1,), np.ones((2, 3, 1))),
])  # fmt: skip
def test_assigning_through_masks_of_the_graph(before: Any, behind: Any, value: Any) -> None:
    shape = (*before, *MASK.shape, *behind)
    x = np.arange(float(np.prod(shape))).reshape(shape)
    index = (slice(None),) * len(before)

    def assigned(x: Any, mask: Any, v: Any) -> Any:
        x[(*index, mask)] = v
        return x

    expected = x.copy()
    expected[(*index, MASK)] = value
    np.testing.assert_array_equal(compiled(assigned, [Tensor(x), Tensor(MASK), Tensor(np.asarray(value))]), expected)


@pytest.mark.parametrize(("use", "message"), [
    (lambda x, m: x[m], "how many elements the mask chooses is only known at run time"),
    (lambda x, m: x[m.any(axis=1)], "how many elements the mask chooses is only known at run time"),
    (lambda x, m: x[[5]], "index 5 is out of range for dimension 0, whose size is 2"),
    (lambda x, m: x[:, [0, -4]], "index -4 is out of range for dimension 1, whose size is 3"),
    (lambda x, m: x[[[0], [1, 2]]], "the list [[0], [1, 2]] cannot be an index; it must hold integers or Bool"),
    (lambda x, m: x[[0.5]], "the list [0.5] cannot be an index; it must hold integers or Bool"),
    (lambda x, m: x[x], "a tensor of Float64 cannot be an index; it must hold integers or Bool"),
    (lambda x, m: x[[0, 1], [0, 1, 2]], "the arrays of an index have shapes that do not fit: (2,), (3,)"),
    (lambda x, m: x[[True, False, True]], "a mask of shape (3,) cannot be an index of dimensions whose shape is (2,)"),
    (lambda x, m: x[::0], "the step of the slice of dimension 0 is 0"),
    (lambda x, m: x[x:], "the bound of dimension 0 is a tensor <Tensor[Float64], (2, 3)>; the bounds of a slice must "
     "be known at compile time"),
    (lambda x, m: x[0, 0, 0], "3 indices for a tensor of 2 dimensions, whose shape is (2, 3)"),
])  # fmt: skip
def test_what_no_index_is(use: Any, message: str) -> None:
    assert error_of(trace, use, [Tensor(np.zeros((2, 3))), Tensor(MASK)]).message == message


def assign_too_much(x: Any, m: Any) -> Any:
    x[0] = x
    return x


def assign_by_count(x: Any, m: Any) -> Any:
    x[[[True, False, True], [False, True, False]]] = x[0, :2]
    return x


def assign_beside_a_mask(x: Any, m: Any) -> Any:
    x[0, m[0]] = 1
    return x


def assign_outside(x: Any, m: Any) -> Any:
    def inner() -> Any:
        x[0] = 1
        return x

    return inner()


@pytest.mark.parametrize(("use", "message"), [
    (assign_too_much, "a value of shape (2, 3) does not fit elements of shape (3,)"),
    (assign_by_count, "a value of shape (2,) does not fit the 3 elements of the mask"),
    (assign_beside_a_mask, "how many elements the mask chooses is only known at run time"),
    (assign_outside, "'x' belongs to an enclosing scope, whose elements cannot be assigned here"),
])  # fmt: skip
def test_what_cannot_be_assigned(use: Any, message: str) -> None:
    assert error_of(trace, use, [Tensor(np.zeros((2, 3))), Tensor(MASK)]).message == message


def test_texts_of_assigned_boxes_are_read_again() -> None:
    """The places of a box are filled with truth."""

    def assigned(x: Any) -> Any:
        x[:, 1:3] = x[:, :2] * 2
        return x, ops.full((3,), True, dtype=mspc.bool_)

    graph = trace(assigned, [Tensor(np.arange(8.0).reshape(2, 4))]).graph
    text = print_graph(graph)
    assert "value: true" in text
    assert difference(graph, parse(text, REGISTRY).main) == ""


def test_places_of_what_is_not_zero_are_those_of_known_tensors() -> None:
    known = Tensor(np.array([[0, 3, 0], [1, 0, 2]]))

    def chosen(x: Any) -> Any:
        return x[ops.nonzero(known, as_tuple=True)]

    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(compiled(chosen, [Tensor(x)]), [1.0, 3.0, 5.0])
    error = error_of(trace, ops.nonzero, [Tensor(x)])
    assert error.message == "nonzero(): how many elements it gives is only known at run time"

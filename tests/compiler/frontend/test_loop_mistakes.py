"""Mistakes of loops and branches that tensors decide: their places, both types, and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest

import mspc
from mspc import ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.types import FLOAT32
from tests.errors import error_of

CASES: list[tuple[Callable[..., Any], str, str, str]] = []


def wrong(carets: str, message: str, note: str = "") -> Callable[..., Any]:
    """carets: what the message points at."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((function, carets, message, note))
        return function

    return add


KEEPS = "carried values keep their shape and element type in every iteration"
ONE_TYPE = "let both branches leave one type and shape"


@wrong(
    "x.sum() < 3",
    "'x' is <Tensor[Float32], (2)> ahead of the loop, and <Tensor[Float32], (1)> behind a turn",
    KEEPS,
)
def shape_that_changes(x):
    while x.sum() < 3:
        x = x[:1]
    return x


@wrong(
    "x.sum() < 3",
    "'x' is <Tensor[Float32], (2)> ahead of the loop, and <Tensor[Float16], (2)> behind a turn",
    "give it one element type before the loop: x = x.astype(mindspore.float16)",
)
def type_that_changes(x):
    while x.sum() < 3:
        x = x.astype(mspc.float16)
    return x


@wrong(
    "range(n)",
    "'total' is 0 ahead of the loop, and <Tensor[Float32], (2)> behind a turn",
    "make it a tensor before the loop: total = ops.full((2,), 0, dtype=mindspore.float32)",
)
def number_that_becomes_a_tensor(x):
    total, n = 0, x.sum().astype(mspc.int32)
    for _ in range(n):
        total = total + x
    return total


@wrong(
    "x.sum() < 3",
    "the list 'found' has 0 elements ahead of the loop, and 1 behind a turn",
    "a list that a loop carries keeps its elements: make a tensor of all entries, and assign to x[i]",
)
def list_that_grows(x):
    found = []
    while x.sum() < 3:
        found.append(x)
        x = x + 1
    return found


@wrong("x.sum() < 3", "the list 'found' has 1 elements ahead of the loop, and 2 behind a turn")
def list_that_another_one_replaces(x):
    found = [x]
    while x.sum() < 3:
        found = [*found, x]
        x = x + 1
    return found


@wrong(
    "x.sum() < 3",
    "the list 'found' is changed by the loop, which replaces it, and other names refer to it",
    "give the loop one of its own: found = list(found)",
)
def list_that_is_changed_replaced_and_shared(x):
    found = [x, x * 2]
    both = (found, 1)
    while x.sum() < 3:
        found[0] = found[0] + 1
        found = [each * 2 for each in found]
        x = x + found[0]
    return found, both[0][0]


def _changed_and_replaced(x, found):
    while x.sum() < 3:
        found[0] = found[0] + 1
        found = [each * 2 for each in found]
        x = x + found[0]
    return x


@wrong("x.sum() < 3", "the list 'found' is changed by the loop, which replaces it, and other names refer to it")
def list_that_a_caller_shares(x):
    kept = [x, x * 2]
    return _changed_and_replaced(x, kept) + kept[0]


@wrong(
    "y",
    "variable 'y' has no value here if the loop that assigns it runs zero iterations",
    "give it a value before the loop",
)
def name_without_a_value(x):
    while x.sum() < 3:
        y = x * 2
        x = x + 1
    return y


@wrong("x is not None", "the loop never ends: its condition always holds, and nothing leaves it")
def condition_that_always_holds(x):
    for _ in range(20):
        while x is not None:
            x = x + 1
            if x.sum() > 5:
                continue
    return x


@wrong(
    "x < 3",
    "the condition of 'while' is a tensor <Tensor[Bool], (2)>; it must have one element",
    "x.all() and x.any() make one of several; ops.select(condition, a, b) chooses for every element",
)
def condition_of_several_elements(x):
    while x < 3:
        x = x + 1
    return x


@wrong(
    "y is None",
    "operator is: it is None or a tensor <Tensor[Float32], (2)>, depending on the contents of a tensor",
    ONE_TYPE,
)
def nothing_that_becomes_a_tensor(x):
    y = None
    while x.sum() < 3:
        if y is None:
            y = x
        x = x + y
    return x


@wrong(
    "y + 1",
    'operator +: can only concatenate tuple (not "int") to tuple',
    "an operand is a tensor <Tensor[Float32], (2)> or a tuple of 2, depending on the contents of a tensor",
)
def branches_of_other_structures(x):
    y = x * x if x.sum() > 0 else (x, x * x)
    return y + 1


@wrong(
    "y * 2",
    "operator *: it is a tensor <Tensor[Float32], (1)> or a tensor <Tensor[Float32], (2)>, depending on the contents "
    "of a tensor",
    ONE_TYPE,
)
def shape_behind_a_loop(x):
    y = x[:1]
    while x.sum() < 3:
        y = x * 2
        x = x + y
    return y * 2


@wrong(
    "range(x.sum())",
    "range() counts by integers of one element, not by a tensor <Tensor[Float32], ()>",
    "cast it first: n.astype(mindspore.int64)",
)
def range_of_a_float(x):
    for _ in range(x.sum()):
        x = x + 1
    return x


@wrong(
    "factorial(n - 1)",
    "calls nest more than 200 deep: the recursion of 'factorial' does not end",
    "numbers and shapes may end a recursion; if the contents of a tensor do, write a loop",
)
def recursion_that_a_tensor_ends(x):
    def factorial(n):
        if n < 1:
            return 1
        return n * factorial(n - 1)

    return factorial(x.sum())


@wrong("fibonacci(n - 1)", "calls nest more than 200 deep: the recursion of 'fibonacci' does not end")
def recursion_that_doubles(x):
    def fibonacci(n):
        if n < 2:
            return n
        return fibonacci(n - 1) + fibonacci(n - 2)

    return fibonacci(x.sum())


@wrong("layers[x]", "an index of a list is an integer of one element, not <Tensor[Float32], (2)>")
def index_of_several_elements(x):
    layers = [ops.tanh, ops.exp]
    return layers[x](x)


@wrong("undefined", "name 'undefined' is not defined")
def mistake_inside_of_a_loop(x):
    i = 0
    while x.sum() < 3:
        i = i + 1
        x = undefined(x, i)  # noqa: F821
    return x


@pytest.mark.parametrize(("function", "carets", "message", "note"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_named_at_its_place(function: Callable[..., Any], carets: str, message: str, note: str) -> None:
    error = error_of(trace, function, [((2,), FLOAT32)])
    assert error.message == message
    place = error.frames[0]
    assert place.text[place.column - 1 : place.end_column - 1] == carets
    assert note == "" or note in error.notes


def test_a_condition_that_never_changes_is_warned_of() -> None:
    def endless(x):
        above = x.sum() > 0
        while above:
            x = x + 1
        return x

    (warning,) = trace(endless, [((2,), FLOAT32)]).warnings
    assert "the condition reads nothing that the loop changes: once it holds, the loop never ends" in warning

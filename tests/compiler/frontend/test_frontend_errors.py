"""Code that the front end refuses: the exact message, and the exact text under the carets."""

# ruff: noqa: F821, F841, RUF059 - wrong programs are the subject
import asyncio
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import nn, ops
from mspc.compiler.frontend import statements
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api.common.gradient import grad, value_and_grad
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from tests.errors import error_of
from tests.graphs import FLOAT32, ErrorGroup, MspcError, TensorType

CASES: list[tuple[Callable[..., Any], str, str]] = []
OUTSIDE = [1, 2]
LOCK = threading.Lock()
X = TensorType(FLOAT32, (2, 4))
HERE = str(Path(__file__).parent)


def wrong(carets: str, message: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function's only mistake is `message`, and the carets stand under `carets`."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((function, carets, message))
        return function

    return keep


def helper(a, b=1, *, c=2):
    return a


CASES += [
    (lambda x: x + missing, "missing", "name 'missing' is not defined"),
    (lambda x: x * math.squareroot(4), "math.squareroot", "module 'math' has no attribute 'squareroot'"),
    (lambda x: ops.relux(x), "ops.relux", "ops has no function 'relux'; `mspc ops` lists the operators"),
    (lambda x: x.asnumpy(), "x.asnumpy",
     "x.asnumpy needs the contents of a tensor, which are not known at compile time"),
    (lambda x: 1 if x else 2, "x", "the condition is a tensor <Tensor[Float32], (2, 4)>; it must have one element"),
    (lambda x: x > 0 and x < 1, "x > 0",
     "an operand of 'and' is a tensor <Tensor[Bool], (2, 4)>; it must have one element"),
    (lambda x: x @ x, "x @ x", "MatMul: dimension 0 of input 1 is 2, but dimension 1 of input 0 says 4"),
    (lambda x: x + "a", 'x + "a"', "operator +: the right operand is 'a', not a tensor or a number"),
    (lambda x: x * (1 + "a"), '1 + "a"', "operator +: unsupported operand type(s) for +: 'int' and 'str'"),
    (lambda x: x * (1 / 0), "1 / 0", "operator /: division by zero"),
    (lambda x: x & x, "x & x", "operator & takes integers and Bool, not Float32"),
    (lambda x: x[5], "x[5]", "index 5 is out of range for dimension 0, whose size is 2"),
    (lambda x: x[0, 0, 0], "x[0, 0, 0]", "3 indices for a tensor of 2 dimensions, whose shape is (2, 4)"),
    (lambda x: x[::0], "x[::0]", "the step of the slice of dimension 0 is 0"),
    (lambda x: ops.unique(x), "ops.unique(x)", "unique(): how many elements it gives is only known at run time"),
    (lambda x: ops.bincount(x), "ops.bincount(x)", "bincount(): how many elements it gives is only known at run time"),
    (lambda x: x["a"], 'x["a"]', "the index of dimension 0 is 'a', not an integer"),
    (lambda x: x[x > 0], "x[x > 0]", "how many elements the mask chooses is only known at run time"),
    (lambda x: x * (1, 2)[2], "(1, 2)[2]", "index 2 is out of range: the tuple has 2 elements"),
    (lambda x: helper(), "helper()", "helper() misses the argument 'a'"),
    (lambda x: helper(x, 1, 2), "helper(x, 1, 2)", "helper() takes 1 to 2 arguments (a, b), not 3"),
    (lambda x: helper(x, d=1), "helper(x, d=1)", "helper() has no argument 'd'"),
    (lambda x: helper(x, a=1), "helper(x, a=1)", "helper() got two values for argument 'a'"),
    (lambda x: x(1), "x(1)", "a tensor <Tensor[Float32], (2, 4)> cannot be called"),
    (lambda x: np.dot(x, x), "np.dot(x, x)", "dot() takes only values known at compile time, not tensors"),
    (lambda x: float(x), "float(x)", "float() of a tensor: its contents are not known at compile time"),
    (lambda x: x * math.sqrt(-1), "math.sqrt(-1)", "sqrt() raised ValueError: math domain error"),
    (lambda x: x * len(1, 2), "len(1, 2)", "len() does not take these arguments"),
    (lambda x: x.sum(1, 2, 3, 4), "x.sum(1, 2, 3, 4)", "Tensor.sum(): too many positional arguments"),
    (lambda x: x.reshape(3, 3), "x.reshape(3, 3)",
     "Reshape: shape (3, 3) needs 9 elements, input 0 of shape (2, 4) has 8"),
    (lambda x: ops.zeros((x.sum(), 2)), "ops.zeros((x.sum(), 2))",
     "Fill: shape[0] must be an integer known at compile time, not a tensor"),
    (lambda x: ops.zeros_like((x, x)), "ops.zeros_like((x, x))",
     "ops.zeros_like(): input must be a tensor, not (a tensor, a tensor)"),
    (lambda x: x.sum(5), "x.sum(5)", "ReduceSum: axis 5 is out of range for 2 dimensions"),
    (lambda x: x * Parameter(1.0, "w"), 'Parameter(1.0, "w")',
     "a Parameter must be made in __init__, not inside a compiled function"),
    (lambda x: nn.Dense(4, 2)(x), "nn.Dense(4, 2)",
     "Dense holds parameters: it must be made in __init__, not inside a compiled function"),
    (lambda x: ops.ReLU()(x, name=1), "ops.ReLU()(x, name=1)",
     "ReLU has no operand of this name, or has it by position: name"),
    (lambda x: ops.MatMul()(x), "ops.MatMul()(x)", "MatMul takes 2 tensors, not 1"),
    (lambda x: ops.ReLU()(None), "ops.ReLU()(None)", "ReLU: input must be a tensor or a number, not None"),
    (lambda x: grad(helper, 3)(x), "grad(helper, 3)(x)", "grad_position 3 is out of range: there are 1 arguments"),
    (lambda x: value_and_grad(helper, has_aux=True)(x), "value_and_grad(helper, has_aux=True)(x)",
     "has_aux=True needs a function that returns (loss, further results), not a tensor <Tensor[Float32], (2, 4)>"),
    (lambda x: "ä" + x, '"ä" + x', "operator +: the left operand is 'ä', not a tensor or a number"),
]  # fmt: skip


@wrong("later", "variable 'later' has no value here: no statement that ran before assigns it")
def used_before_it_is_assigned(x):
    y = later + x
    later = 1
    return y


@wrong("x.shap", "a tensor has no attribute 'shap'")
def unknown_tensor_attribute(x):
    return x.reshape(x.shap)


@wrong(
    "x > 0",
    "the condition of 'if' is a tensor <Tensor[Bool], (2, 4)>; it must have one element",
)
def if_on_a_tensor(x):
    if x > 0:
        return x
    return -x


@wrong(
    "if x.sum() > 0:",
    "a list has other elements, depending on the contents of a tensor",
)
def list_that_grows_in_one_branch(x):
    found = [x]
    if x.sum() > 0:
        found.append(-x)
    return found


@wrong("x.sum()", "the loop goes over a tensor without dimensions")
def loop_over_a_number(x):
    total = 0
    for row in x.sum():
        total = total + row
    return total


@wrong("a, b, c", "3 names on the left, but 2 values on the right")
def unpacking_a_tensor(x):
    a, b, c = x
    return a


@wrong("try:", "'try' is not supported inside a compiled function")
def try_statement(x):
    try:
        return x
    except ValueError:
        return -x


@wrong('open("f")', "open() is not supported inside a compiled function")
def with_statement(x):
    with open("f") as f:
        return x


@wrong("global OUTSIDE", "'global' is not supported inside a compiled function")
def global_statement(x):
    global OUTSIDE
    OUTSIDE = x
    return x


@wrong("yield x", "'yield' is not supported inside a compiled function")
def generator(x):
    yield x


@wrong("del x", "'del' is not supported inside a compiled function")
def delete(x):
    y = x + 1
    del x
    return y


@wrong("class Inner:", "'class' is not supported inside a compiled function")
def class_statement(x):
    class Inner:
        pass

    return x


@wrong("import math as m", "'import' is not supported inside a compiled function")
def import_statement(x):
    import math as m

    return x * m.pi


@wrong("match x.ndim:", "'match' is not supported inside a compiled function")
def match_statement(x):
    match x.ndim:
        case 2:
            return x
    return -x


@wrong("async def inner():", "'async' is not supported inside a compiled function")
def async_function(x):
    async def inner():
        await asyncio.sleep(0)

    return x


@wrong('raise ValueError(f"rank {x.ndim} is wrong")', "ValueError: rank 2 is wrong")
def raised(x):
    if x.ndim != 3:
        raise ValueError(f"rank {x.ndim} is wrong")
    return x


@wrong("x.shape[0] == 3", "assertion failed: rows 2")
def failed_assertion(x):
    assert x.shape[0] == 3, f"rows {x.shape[0]}"
    return x


@wrong("x + y", "Add: dimension 1 of input 1 is 3, but dimension 1 of input 0 says 4")
def shapes_that_do_not_broadcast(x):
    y = x[:, :3]
    return x + y


@wrong("LOCK", "'with' over a lock is not supported inside a compiled function")
def with_over_what_is_no_context_of_the_script(x):
    with LOCK:
        return x


@wrong("x[0]", "a value of shape (2, 4) does not fit elements of shape (4,)")
def element_assignment(x):
    x[0] = x
    return x


@wrong("OUTSIDE[0]", "this would change a list that lives outside of the compiled function")
def changing_what_is_outside(x):
    OUTSIDE[0] = 5
    return x


@wrong("OUTSIDE.append(x)", "append() would change a list that lives outside of the compiled function")
def appending_to_what_is_outside(x):
    OUTSIDE.append(x)
    return x


@wrong('open("f")', "open() is not supported inside a compiled function")
def refused_builtin(x):
    open("f")
    return x


@wrong("a, b", "2 names on the left, but 3 values on the right")
def wrong_unpacking(x):
    a, b = (1, 2, 3)
    return x * a


@wrong("{1, 2}", "the loop goes over a set, whose order is not defined")
def loop_over_a_set(x):
    for i in {1, 2}:
        x = x * i
    return x


@wrong("endless(x)", "calls nest more than 200 deep: the recursion of 'endless' does not end")
def endless(x):
    return endless(x)


@wrong("True", "the loop never ends: its condition always holds, and nothing leaves it")
def endless_loop(x):
    while True:
        pass


@wrong("n > 0", "the loop still runs after 300 turns")
def loop_without_end(x):
    n = 1
    while n > 0:
        n = 3 - n


@wrong("value_and_grad(lambda a: 3)(x)", "the function returns 3; there is nothing to differentiate")
def gradient_of_a_number(x):
    return value_and_grad(lambda a: 3)(x)


@wrong("x +", "operator +: the right operand is 'a', not a tensor or a number")
def over_several_lines(x):
    # fmt: off
    return 2 * (x +
                "a")
    # fmt: on


@wrong("ops.matmul(x, x)", "MatMul: dimension 0 of input 1 is 2, but dimension 1 of input 0 says 4")
def what_was_not_appended_is_no_further_mistake(x):
    found, named = [], {}
    for _ in range(2):
        y = ops.matmul(x, x)
        found.append(y)
        named.update(last=y)
    return ops.stack(found) + named["last"]


@wrong("zip([x, x], pair, strict=True)", "zip(strict=True): the lengths differ: [x, x] has 2, pair has 1")
def lists_that_differ_in_length(x):
    pair = (x,)
    return ops.stack([a + b for a, b in zip([x, x], pair, strict=True)])


@wrong("zip(*rows, strict=True)", "zip(strict=True): the lengths differ: argument 0 has 2, argument 1 has 1")
def lists_in_a_list_that_differ_in_length(x):
    rows = [(x, x), (x,)]
    return ops.stack([a + b for a, b in zip(*rows, strict=True)])


@pytest.mark.parametrize(("function", "carets", "message"), CASES, ids=[carets for _, carets, _ in CASES])
def test_mistake_is_named_at_its_place(
    function: Callable[..., Any], carets: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "MAX_TURNS", 300)  # a loop without end takes as long as this is large
    error = error_of(trace, function, [X], script_folder=HERE)
    where = error.location
    assert error.message == message
    assert where is not None
    assert where.file == "test_frontend_errors.py"
    assert where.text[where.column - 1 : where.end_column - 1] == carets
    assert error.exit_status == 2


class Inner(nn.Cell):
    def construct(self, x):
        return self.lost(x)


class Outer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.matmul = ops.MatMul()
        self.w = Parameter(Tensor(np.ones((3, 3), np.float32)), "w")

    def construct(self, x):
        a = self.inner(x)
        b = self.matmul(x, self.w)
        c = a + b
        try:
            d = c
        finally:
            pass
        if d:
            return x
        return x


def test_independent_mistakes_come_together() -> None:
    with pytest.raises(ErrorGroup) as caught:
        trace(Outer(), [X], script_folder=HERE)
    assert [error.message for error in caught.value.errors] == [
        "'Inner' object has no attribute 'lost'",
        "MatMul 'matmul': dimension 0 of input 1 is 3, but dimension 1 of input 0 says 4",
        "'try' is not supported inside a compiled function",
    ]


def test_guess_is_offered() -> None:
    assert error_of(trace, unknown_tensor_attribute, [X]).notes == ("did you mean 'shape'?",)


def test_two_parameters_of_one_name_are_refused() -> None:
    first, second = (Parameter(Tensor(np.ones(4, np.float32)), "w") for _ in range(2))

    def network(x):
        return x * first + second

    with pytest.raises(MspcError, match="two parameters are called 'w'"):
        trace(network, [X])


def test_cell_without_construct_is_refused() -> None:
    with pytest.raises(MspcError, match=r"Cell defines no construct\(\)"):
        trace(nn.Cell(), [X])


def test_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(MspcError, match=r"construct\(\) takes 1 argument \(x\), not 2"):
        trace(Inner(), [X, X])


def test_source_that_is_not_there_is_refused() -> None:
    names: dict[str, Any] = {}
    exec("def made(x):\n    return x", names)
    with pytest.raises(MspcError, match="the source of 'made' is not available"):
        trace(lambda x: names["made"](x), [X])

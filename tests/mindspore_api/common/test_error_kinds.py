"""Which built-in exception a mistake is as well: scripts catch them as they catch MindSpore's.

TypeError: an argument of the wrong type, too many or too few of them. ValueError: a wrong value or shape. RuntimeError:
strategies, and what a compiled function cannot do. IndexError, KeyError, AttributeError, NameError, ZeroDivisionError
and AssertionError as in Python.
"""

import enum
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn, ops
from mspc.ir.diagnostics import ErrorGroup, MspcError
from mspc.mindspore_api.ops.method_table import method_names
from mspc.mindspore_api.rooms import PUBLIC
from tests.compiled_scripts import Config, compile_call
from tests.errors import error_of

X = Tensor(np.ones((8, 4), np.float32))
INTEGERS = Tensor(np.ones((8, 4), np.int32))


class Net(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 2), np.float32)), "w")
        self.form = form

    def construct(self, x: Any) -> Any:
        return self.form(self, x)


def raising(error: Any) -> Callable[..., Any]:
    def form(net: Any, x: Any) -> Any:
        raise error

    return form


def asserting(net: Any, x: Any) -> Any:
    assert x.shape[0] == 3, "three rows"
    return x


def unpacking(net: Any, x: Any) -> Any:
    one, other = (x, x, x)
    return one + other


def unknown_at_compile_time(net: Any, x: Any) -> Any:
    return x if all([x.sum() > 0, x.max() > 0]) else -x


def importing(net: Any, x: Any) -> Any:
    import os

    return x * len(os.sep)


IN_CONSTRUCT: list[tuple[type[Exception], Callable[..., Any]]] = [
    (TypeError, lambda net, x: ops.AlltoAll(split_count=1, split_dim=(0, 1), concat_dim=0)(x)),
    (TypeError, lambda net, x: ops.ReLU()("x")),
    (TypeError, lambda net, x: ops.relu(None)),
    (TypeError, lambda net, x: ops.MatMul()(x)),
    (TypeError, lambda net, x: ops.ReLU()(bogus=x)),
    (TypeError, lambda net, x: ops.reduce_sum(x, "0")),
    (TypeError, lambda net, x: ops.reshape(x, 1.5)),
    (TypeError, lambda net, x: ops.cast(x, "nothing")),
    (TypeError, lambda net, x: ops.Softmax()(ops.cast(x, ms.int32))),
    (TypeError, lambda net, x: "a" + 1),
    (TypeError, lambda net, x: x()),
    (TypeError, lambda net, x: (lambda one, other: one)(x)),
    (ValueError, lambda net, x: ops.matmul(x, x)),
    (ValueError, lambda net, x: x + net.w),
    (ValueError, lambda net, x: ops.reshape(x, (3, 3))),
    (ValueError, lambda net, x: ops.reduce_sum(x, 5)),
    (ValueError, lambda net, x: ops.transpose(x, (0, 0))),
    (ValueError, lambda net, x: ops.Split(0, 3)(x)),
    (ValueError, lambda net, x: ops.concat((x, net.w))),
    (ValueError, lambda net, x: ops.assign(net.w, x)),
    (ValueError, lambda net, x: ms.grad(lambda y: y.sum(), 3)(x)),
    (ValueError, lambda net, x: int("a") * x),
    (ValueError, unpacking),
    (IndexError, lambda net, x: x[9]),
    (IndexError, lambda net, x: x[0, 0, 0]),
    (IndexError, lambda net, x: [x][3]),
    (KeyError, lambda net, x: {"a": x}["b"]),
    (AttributeError, lambda net, x: net.nothing(x)),
    (AttributeError, lambda net, x: x.nothing()),
    (NameError, lambda net, x: nothing(x)),  # type: ignore[name-defined]  # noqa: F821
    (ZeroDivisionError, lambda net, x: x * (1 // (x.shape[0] - 8))),
    (AssertionError, asserting),
    (ValueError, raising(ValueError("no"))),
    (TypeError, raising(TypeError)),
    (IndexError, raising(IndexError("no"))),
    (NotImplementedError, raising(NotImplementedError("no"))),
    (RuntimeError, raising(OSError("no"))),
    (RuntimeError, unknown_at_compile_time),
    (RuntimeError, importing),
    (RuntimeError, lambda net, x: ops.ReLU().shard(((2, 1),))(x)),
    (RuntimeError, lambda net, x: ops.ReLU().shard(((1,),))(x)),
    (RuntimeError, lambda net, x: ops.MatMul().shard(((1, 1),))(x, net.w)),
]


@pytest.mark.parametrize(("kind", "form"), IN_CONSTRUCT)
def test_mistakes_in_construct(kind: type[Exception], form: Callable[..., Any]) -> None:
    error = error_of(compile_call, Net(form), [X], Config(mode="semi_auto_parallel"))
    assert error.kind is kind
    assert isinstance(error, kind)
    assert error.location is not None


OUTSIDE: list[tuple[type[Exception], Callable[[], Any]]] = [
    (TypeError, lambda: ops.AlltoAll(split_count=2, split_dim=(0, 1), concat_dim=0)),
    (TypeError, lambda: ops.AlltoAll(split_count="2", split_dim=0, concat_dim=0)),
    (TypeError, lambda: ops.AllReduce(op=3)),
    (TypeError, lambda: ops.AllReduce(group=3)),
    (TypeError, lambda: ops.MatMul(transpose_a=3)),
    (TypeError, lambda: ops.MatMul(nothing=3)),
    (TypeError, lambda: ops.Dropout("0.5")),
    (TypeError, lambda: ops.MatMul().shard(3)),
    (TypeError, lambda: nn.Dense("a", 3)),
    (TypeError, lambda: ops.Softmax()(INTEGERS)),
    (ValueError, lambda: ops.MatMul()(X, X)),
    (ValueError, lambda: ops.AllReduce(op="median")(X)),
    (ValueError, lambda: ops.MatMul().shard(((0, 1), (1, 1)))),
    (ValueError, lambda: nn.Dense(0, 3)),
    (IndexError, lambda: X[9]),
]


@pytest.mark.parametrize(("kind", "call"), OUTSIDE)
def test_mistakes_outside(kind: type[Exception], call: Callable[[], Any]) -> None:
    assert error_of(call).kind is kind


def two_mistakes(net: Any, x: Any) -> Any:
    one = ops.matmul(x, x)
    other = ops.relu(None)
    return one, other


def test_a_group_is_of_its_first_error() -> None:
    with pytest.raises(ErrorGroup) as caught:
        compile_call(Net(two_mistakes), [X], Config())
    assert caught.value.kind is ValueError


LARGE_X, WHERE = Tensor(np.array([1, 2, 3], np.int32)), Tensor(np.array([True, False, True]))
def test_numbers_of_64_bits_without_a_sign() -> None:
    assert (Tensor([2**63]).dtype, Tensor([1, 2**64 - 1]).asnumpy().tolist()) == (ms.uint64, [1, 2**64 - 1])
    assert Tensor([np.uint64(5), 2**63 - 1]).dtype == ms.int64
    assert Tensor([1.0, 2**63]).dtype == ms.float32
    with pytest.raises(TypeError, match="a tensor is made of numbers of one element type, not of"):
        Tensor([-1, 2**63])


def test_element_types_that_mindspore_refuses() -> None:
    numbers = Tensor(np.array([1.5 + 2j], np.complex64))
    for call in (ops.floor, ops.ceil, ops.trunc, ops.round):
        with pytest.raises(TypeError, match="the operator takes no complex numbers"):
            call(numbers)
    with pytest.raises(TypeError, match="L2Loss: input 0 is Int32, not a floating-point tensor"):
        ops.L2Loss()(LARGE_X)
    for call in (ops.cumsum, ops.CumProd()):
        with pytest.raises(TypeError, match="input 0 is Bool, not a number"):
            call(WHERE, 0)


def test_the_absolute_value_of_complex_numbers_is_real() -> None:
    numbers = Tensor(np.array([3 - 4j, 0], np.complex64))

    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.abs(x)

    for found in (ops.abs(numbers), ops.Abs()(numbers), Net()(numbers)):
        assert (found.dtype, found.asnumpy().tolist()) == (ms.float32, [5.0, 0.0])
    with pytest.raises(MspcError, match="Abs has no gradient of complex numbers; ComplexAbs has one"):
        ms.grad(lambda x: ops.abs(x).sum())(numbers)


DIGITS = 10**5000
"""Python refuses to print it."""
ROWS = Tensor(np.ones((4, 4), np.float32))
LONG = "an integer of more than 256 bits"


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.arange(DIGITS), LONG),
    (lambda: ops.split(ROWS, DIGITS), LONG),
    (lambda: ops.chunk(ROWS, DIGITS), LONG),
    (lambda: ROWS[DIGITS], f"index {LONG} of a tensor"),
    (lambda: ROWS * DIGITS, f"{LONG} is no number of Float32"),
    (lambda: ROWS.reshape(DIGITS), LONG),
    (lambda: Tensor(DIGITS), LONG),
    (lambda: nn.Dense(DIGITS, 3), LONG),
    (lambda: nn.GroupNorm(DIGITS, 3), f"GroupNorm: these arguments do not fit: num_groups={LONG}"),
    (lambda: ms.set_seed(DIGITS), LONG),
    (lambda: nn.MicroBatchInterleaved(nn.ReLU(), DIGITS), f"interleave_num {LONG} must be at most 65536"),
    (lambda: nn.PipelineCell(nn.ReLU(), -DIGITS), f"micro_size {LONG} must be at least 1"),
    (lambda: nn.LSTM(2, 2, DIGITS), f"LSTM: num_layers {LONG} must be at most 65536"),
    (lambda: ops.transpose(ROWS, (DIGITS, 0)), r"perm\[0\] is an integer that does not fit 64 bits"),
])  # fmt: skip
def test_integers_that_python_does_not_print(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        call()


@pytest.mark.parametrize(("function", "message"), [
    (lambda x: ops.arange(0, DIGITS, 1) + x[0], f"{LONG}"),
    (lambda x: ops.split(x, DIGITS)[0], LONG),
    (lambda x: ops.full((2, 2), DIGITS), f"Fill: {LONG} is beyond the 64 bits of an integer"),
    (lambda x: x[DIGITS], f"index {LONG} is out of range for dimension 0"),
    (lambda x: ops.stack([x, x], DIGITS), f"Stack: {LONG} is beyond the 64 bits of an integer"),
    (lambda x: x.sum(axis=DIGITS), LONG),
    (lambda x: x * sum(range(DIGITS)), r"sum\(\) has more than 1048576 iterations at compile time"),
    (lambda x: x * sorted(range(DIGITS))[0], r"sorted\(\) has more than 1048576 iterations at compile time"),
    (lambda x: ops.tril(x, DIGITS), "Tril: diagonal is an integer that does not fit 64 bits"),
])  # fmt: skip
def test_networks_with_integers_that_python_does_not_print(function: Any, message: str) -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            return function(x)

    with pytest.raises(MspcError, match=message) as raised:
        Net()(ROWS)
    assert "test_error_kinds.py" in str(raised.value)


def test_a_loop_of_more_iterations_than_python_counts() -> None:
    class Net(nn.Cell):
        def construct(self, x: Any) -> Any:
            for _ in range(DIGITS):
                x = x + 1
            return x

    with pytest.raises(MspcError, match="the loop has more than 1048576 iterations at compile time"):
        Net()(ROWS)


BAD = [5, "x", None, [1, 2], {}, 1.5, True, object(), (Tensor([1.0]), "q")]
BAD_X = Tensor(np.ones((2, 3), np.float32))
ELSEWHERE = {"grad", "value_and_grad", "reshard", "partial", "functional", "nn", "optim", "checked"}
ELSEWHERE |= {"add_flags", "identity", "is_tensor", "shard"}
PLACES = {"ops": ops, "mint": mint, "functional": mint.nn.functional}
FUNCTIONS = {
    getattr(module, name): f"{place}.{name}"
    for place, module in PLACES.items()
    for name in dir(module)
    if name[0].islower() and name not in ELSEWHERE and callable(getattr(module, name))
}
"""Functions, each once, with one of their names."""
METHODS = [name for name in method_names() if name not in ("copy", "to", "type")]
AT_ONCE = 40
"""Functions of a test: to begin one takes as long as to call a function."""


def attempt(name: str, function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except MspcError:
        return
    except Exception as error:
        error.add_note(f"{name}{args}")
        raise


@pytest.mark.parametrize("first", range(0, len(FUNCTIONS), AT_ONCE))
def test_functions(first: int) -> None:
    with np.errstate(all="ignore"):
        for function, name in [*FUNCTIONS.items()][first : first + AT_ONCE]:
            for bad in BAD:
                for given in ((bad,), (bad, bad), (BAD_X, bad), (BAD_X, BAD_X, bad)):
                    attempt(name, function, *given)


@pytest.mark.parametrize("first", range(0, len(METHODS), AT_ONCE))
def test_methods(first: int) -> None:
    with np.errstate(all="ignore"):
        for name in METHODS[first : first + AT_ONCE]:
            for bad in BAD:
                attempt(name, getattr(BAD_X, name), bad)
                attempt(name, getattr(BAD_X, name), BAD_X, bad)


def test_cells() -> None:
    cells = {cls: name for place in (nn, mint.nn) for name in dir(place) if is_cell(cls := getattr(place, name))}
    assert len(cells) > 130
    for cls, name in cells.items():
        for bad in BAD:
            attempt(name, cls, bad)


MODULES = """mspc mspc.amp mspc.common.initializer mspc.communication mspc.communication.comm_func
    mspc.context mspc.dataset mspc.dataset.config mspc.dataset.transforms mspc.dataset.vision
    mspc.hal mspc.mindrecord mspc.mint
    mspc.mint.distributed mspc.mint.linalg
    mspc.mint.nn mspc.mint.nn.functional mspc.mint.optim mspc.mint.special mspc.nn mspc.nn.utils mspc.numpy mspc.ops
    mspc.parallel mspc.parallel.transformer mspc.runtime mspc.train""".split()
TAKES_ALL = """enable_dynamic add_flags Identity Initializer
    get_metric_fn piecewise save_checkpoint""".split()
"""Functions that take arguments of any name: to say that they change nothing, or to hand them on."""
REFUSES_ALL = """Adam Metric Model Primitive build_train_network load
    recompute set_ps_context""".split()
"""Classes that say first that they cannot be made at all, or what their first argument must be."""
NOT_PUBLIC = """FrozenContext absent checked describe dropout_ext_op view""".split()
"""Names that modules use themselves; an object that is called; names that need more than the tests have."""


def public_callables() -> dict[int, tuple[str, Any]]:
    """Functions, operators and classes of mspc, each once, with one of their names."""
    found: dict[int, tuple[str, Any]] = {}
    for module in map(importlib.import_module, MODULES):
        for name in dir(module):
            if name[0] == "_" or name in NOT_PUBLIC:
                continue
            made = getattr(module, name)
            is_class = isinstance(made, type) and not issubclass(made, enum.Enum | BaseException)
            home = str(getattr(made, "__module__", ""))
            is_own = home.startswith((*PUBLIC, "mspc.ops")) and callable(made) and not isinstance(made, ModuleType)
            if is_own and (is_class or not isinstance(made, type)):
                found.setdefault(id(made), (name, made))
    return found


def refused(name: str, made: Any, *args: Any, **kwargs: Any) -> str:
    """The message of a call that cannot be, which names what was called."""
    error = error_of(made, *args, **kwargs)
    said = " ".join([error.message, *error.notes])
    names = {name, getattr(made, "__name__", name), getattr(made, "name", name)}
    assert any(str(each) in said for each in names), (name, args, kwargs, said)
    return said


def test_what_is_too_many_too_few_or_unknown_is_named() -> None:
    for name, made in public_callables().values():
        if name in REFUSES_ALL:
            continue
        try:
            parameters = inspect.signature(made).parameters.values()
        except (TypeError, ValueError):
            continue
        needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if name not in TAKES_ALL:
            said = refused(name, made, *[BAD_X] * len(needed), unknown_name=1)
            assert "unknown_name" in said or "missing" in said, (name, said)
        if not takes_more:
            refused(name, made, *[BAD_X] * 40)
        if needed and not takes_more:
            assert needed[0].name in refused(name, made), name


def is_cell(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, nn.Cell) and found is not nn.Cell


@pytest.mark.parametrize(("call", "message"), [
    (lambda: nn.LeakyReLU("x"), "LeakyReLU: alpha must be a number, not 'x'"),
    (lambda: nn.MaxPool1d((2, 2)), "MaxPool1d: kernel_size must be an int, not (2, 2)"),
    (lambda: nn.Conv3d(1, 1, 1, data_format="NCHW"), "Conv3d: data_format must be 'NCDHW', not 'NCHW'"),
    (lambda: nn.Dense(3), "Dense: missing a required argument: 'out_channels'"),
    (lambda: nn.ReLU6(x=1), "ReLU6: got an unexpected keyword argument 'x'"),
    (lambda: ops.ScalarCast(1), "ScalarCast: too many positional arguments"),
    (lambda: ops.Bernoulli("x")(BAD_X, 0.5), "Bernoulli(): seed must be an int, not 'x'"),
    (lambda: nn.Cell(flags=3), "Cell: flags must be a dict, not 3"),
    (lambda: nn.Dropout1d()(99), "Dropout1d: x must be a tensor, not 99"),
    (lambda: nn.MSELoss()(1j, "x"), "MSELoss: these arguments do not fit: logits=a complex, labels='x'"),
    (lambda: Tensor([1, 2, 3]) + Tensor([1, 2]), "shapes (3,) and (2,) do not fit"),
    (lambda: Tensor([2]) ** Tensor([-1]), "operator **: integers have no negative powers that are integers"),
    (
        lambda: ops.nanquantile(BAD_X, np.array([1.5, 2])),
        "nanquantile(): q must be numbers from 0 to 1, not [1.5, 2.0]",
    ),
    (lambda: ops.softmax(Tensor(1.0)), "Softmax: a number has no axis -1"),
    (lambda: ms.set_seed(2.5), "set_seed: seed must be an integer, not 2.5"),
    (lambda: ms.dataset.vision.Resize(2**30), "Resize: size 1073741824 must be at most 16777216"),
    (lambda: nn.cosine_decay_lr(0.01, 0.1, 2**40, 2, 2),
     "cosine_decay_lr: total_step 1099511627776 must be at most 2147483647, as the list has so many numbers"),
    (lambda: setattr(ms.Parameter(1.0), "requires_grad", 1), "Parameter.requires_grad must be True or False, not 1"),
    (lambda: nn.SGD([ms.Parameter(1.0)], (None,)), "SGD: learning_rate must be a list of numbers, not of object"),
    (lambda: nn.ReLU().register_forward_hook("x"), "ReLU: a hook must be a function, not 'x'"),
    (lambda: ms.save_checkpoint(nn.ReLU(), {}), "save_checkpoint: ckpt_file_name must be a string, not dict"),
    (lambda: ms.Model(nn.ReLU()).train(), "Model.train: missing a required argument: 'epoch'"),
    (lambda: ops.zeros_like(5), "ops.zeros_like(): input must be a tensor, not 5"),
    (lambda: ops.flatten(5), "ops.flatten(): input must be a tensor, not 5"),
    (lambda: ops.cross_entropy(BAD_X, 5), "ops.cross_entropy(): target must be a tensor, not 5"),
    (lambda: ops.matmul(BAD_X, 5), "ops.matmul(): other must be a tensor, not 5"),
    (lambda: ops.concat(5), "ops.concat(): tensors must be a tuple or a list, not 5"),
    (lambda: ops.div(BAD_X, "x"), "ops.div(): other must be a number or a tensor, not 'x'"),
    (lambda: ops.norm(object()), "ops.norm(): A must be a tensor, not object"),
    (lambda: ops.norm(BAD_X, [1]), "norm(): vectors have no norm [1]"),
    (lambda: ops.add(BAD_X, {}), "Add: other must be a tensor or a number, not dict"),
    (lambda: ops.relu("x"), "ReLU: input must be a tensor or a number, not 'x'"),
    (lambda: ops.einsum("ij", 5), "einsum(): an operand must be a tensor, not 5"),
    (lambda: ops.einsum("ij->k", BAD_X), "einsum(): 'k' of the result is in no operand of 'ij->k'"),
    (lambda: ops.einsum("ij->ii", BAD_X), "einsum(): the result of 'ij->ii' names a dimension twice"),
    (lambda: ops.einsum("ijk", BAD_X), "einsum(): 'ijk' of 'ijk' does not name the 2 dimensions of its operand"),
    (lambda: ops.einsum("ij,jk", BAD_X, BAD_X), "einsum(): 'j' of 'ij,jk' is 3 in one operand and 2 in another"),
    (lambda: ops.einsum("i1", BAD_X), "einsum(): 'i1' holds '1', which is no letter"),
    (lambda: ops.einsum("ij"), "einsum(): there are no tensors after the equation"),
    (lambda: ops.pad(BAD_X, (1, 2, 3)), "pad(): padding (1, 2, 3) must be pairs for at most 2 dimensions"),
    (lambda: ops.pad(BAD_X, (3, 0), "reflect"),
     "pad(): dimension 1 of size 3 cannot have the margins (3, 0) in mode 'reflect'"),
    (lambda: ops.pad(BAD_X, (1, 0), "mirror"),
     "pad(): mode is 'mirror', not 'constant', 'reflect', 'replicate', 'circular'"),
    (lambda: ops.roll(BAD_X, (1, 2), 0), "roll(): shifts (1, 2) and dims (0,) must be as many"),
    (lambda: ops.diagonal(BAD_X, 0, 1, -1), "diagonal(): dimensions 1 and -1 are the same"),
    (lambda: mint.std(Tensor([1, 2])), "std(): input is Int64, not a floating-point tensor"),
    (lambda: mint.nn.functional.linear(5, BAD_X), "mint.nn.functional.linear(): input must be a tensor, not 5"),
    (lambda: BAD_X.reshape_as(5), "Tensor.reshape_as(): other must be a tensor, not 5"),
])  # fmt: skip
def test_messages(call: Callable[[], Any], message: str) -> None:
    assert error_of(call).message == message


DEPTH = 1100
DEEP_X = Tensor(np.ones((2, 2), np.float32))


class Around(nn.Cell):
    """Adds its parameter to what the cell inside returns."""

    def __init__(self, inside: nn.Cell) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(2, np.float32)), "weight")
        self.inside = inside

    def construct(self, x: Any) -> Any:
        return self.inside(x) + self.weight


def nested(depth: int) -> nn.Cell:
    net = cell = Around(nn.ReLU())
    for _ in range(depth - 1):
        cell.inside = cell = Around(cell.inside)
    return net


def test_nested_cells() -> None:
    net = nested(DEPTH)
    visited: list[nn.Cell] = []
    net.apply(visited.append)
    paths = [path for path, _ in net.cells_and_names()]
    assert (len(visited), visited[-1] is net, type(visited[0])) == (DEPTH + 1, True, nn.ReLU)
    assert (paths[0], paths[2], len(paths)) == ("", "inside.inside", DEPTH + 1)
    assert net.trainable_params()[1].name == "inside.weight"
    assert np.array_equal(nested(150)(DEEP_X).asnumpy(), np.full((2, 2), 151, np.float32))
    with pytest.raises(RuntimeError, match="cells nest more than 200 deep") as raised:
        net(DEEP_X)
    assert "return self.inside(x) + self.weight" in str(raised.value)


def test_cells_are_visited_in_order() -> None:
    net = nn.SequentialCell(nn.SequentialCell(nn.ReLU(), nn.Tanh()), nn.Sigmoid())
    visited: list[str] = []
    net.apply(lambda cell: visited.append(type(cell).__name__))
    assert visited == ["ReLU", "Tanh", "SequentialCell", "Sigmoid", "SequentialCell"]
    assert [path for path, _ in net.cells_and_names()] == ["", "0", "0.0", "0.1", "1"]


def deep_tuple() -> Any:
    found: Any = DEEP_X
    for _ in range(DEPTH):
        found = (found,)
    return found


class Returning(nn.Cell):
    def construct(self, x: Any) -> Any:
        found = x
        for _ in range(300):
            found = (found, 1)
        return found


class Identity(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: Identity()(x), "argument 0 is a tuple nested more than 200 deep"),
    (lambda x: Returning()(DEEP_X), "the network returns a tuple nested more than 200 deep"),
    (lambda x: ops.stack(x), "a tuple nested too deep to print"),
    (lambda x: Tensor(x), "a tuple nested too deep to print"),
    (lambda x: DEEP_X.reshape(x), "a tuple nested too deep to print"),
    (lambda x: ops.Add().shard(x), "in_strategy is a tuple nested too deep to print"),
    (lambda x: ms.jit(lambda a: a)(x), "argument 0 is a tuple nested more than 200 deep"),
])  # fmt: skip
def test_nested_tuples(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message) as raised:
        call(deep_tuple())
    assert "test_error_kinds.py" in str(raised.value) or "returns" in message  # the command adds the caller's line

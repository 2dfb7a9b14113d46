"""Whatever a public function is called with, its answer is a result or a message of ours that names what was wrong."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.ops.method_table import method_names
from mspc.mindspore_api.rooms import PUBLIC

BAD = [5, "x", None, [1, 2], {}, 1.5, True, object(), (Tensor([1.0]), "q")]
X = Tensor(np.ones((2, 3), np.float32))
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
                for given in ((bad,), (bad, bad), (X, bad), (X, X, bad)):
                    attempt(name, function, *given)


@pytest.mark.parametrize("first", range(0, len(METHODS), AT_ONCE))
def test_methods(first: int) -> None:
    with np.errstate(all="ignore"):
        for name in METHODS[first : first + AT_ONCE]:
            for bad in BAD:
                attempt(name, getattr(X, name), bad)
                attempt(name, getattr(X, name), X, bad)


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
    with pytest.raises(MspcError) as raised:
        made(*args, **kwargs)
    said = " ".join([raised.value.message, *raised.value.notes])
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
            said = refused(name, made, *[X] * len(needed), unknown_name=1)
            assert "unknown_name" in said or "missing" in said, (name, said)
        if not takes_more:
            refused(name, made, *[X] * 40)
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
    (lambda: ops.Bernoulli("x")(X, 0.5), "Bernoulli(): seed must be an int, not 'x'"),
    (lambda: nn.Cell(flags=3), "Cell: flags must be a dict, not 3"),
    (lambda: nn.Dropout1d()(99), "Dropout1d: x must be a tensor, not 99"),
    (lambda: nn.MSELoss()(1j, "x"), "MSELoss: these arguments do not fit: logits=a complex, labels='x'"),
    (lambda: Tensor([1, 2, 3]) + Tensor([1, 2]), "shapes (3,) and (2,) do not fit"),
    (lambda: Tensor([2]) ** Tensor([-1]), "operator **: integers have no negative powers that are integers"),
    (lambda: ops.nanquantile(X, np.array([1.5, 2])), "nanquantile(): q must be numbers from 0 to 1, not [1.5, 2.0]"),
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
    (lambda: ops.cross_entropy(X, 5), "ops.cross_entropy(): target must be a tensor, not 5"),
    (lambda: ops.matmul(X, 5), "ops.matmul(): other must be a tensor, not 5"),
    (lambda: ops.concat(5), "ops.concat(): tensors must be a tuple or a list, not 5"),
    (lambda: ops.div(X, "x"), "ops.div(): other must be a number or a tensor, not 'x'"),
    (lambda: ops.norm(object()), "ops.norm(): A must be a tensor, not object"),
    (lambda: ops.norm(X, [1]), "norm(): vectors have no norm [1]"),
    (lambda: ops.add(X, {}), "Add: other must be a tensor or a number, not dict"),
    (lambda: ops.relu("x"), "ReLU: input must be a tensor or a number, not 'x'"),
    (lambda: ops.einsum("ij", 5), "einsum(): an operand must be a tensor, not 5"),
    (lambda: ops.einsum("ij->k", X), "einsum(): 'k' of the result is in no operand of 'ij->k'"),
    (lambda: ops.einsum("ij->ii", X), "einsum(): the result of 'ij->ii' names a dimension twice"),
    (lambda: ops.einsum("ijk", X), "einsum(): 'ijk' of 'ijk' does not name the 2 dimensions of its operand"),
    (lambda: ops.einsum("ij,jk", X, X), "einsum(): 'j' of 'ij,jk' is 3 in one operand and 2 in another"),
    (lambda: ops.einsum("i1", X), "einsum(): 'i1' holds '1', which is no letter"),
    (lambda: ops.einsum("ij"), "einsum(): there are no tensors after the equation"),
    (lambda: ops.pad(X, (1, 2, 3)), "pad(): padding (1, 2, 3) must be pairs for at most 2 dimensions"),
    (lambda: ops.pad(X, (3, 0), "reflect"),
     "pad(): dimension 1 of size 3 cannot have the margins (3, 0) in mode 'reflect'"),
    (lambda: ops.pad(X, (1, 0), "mirror"),
     "pad(): mode is 'mirror', not 'constant', 'reflect', 'replicate', 'circular'"),
    (lambda: ops.roll(X, (1, 2), 0), "roll(): shifts (1, 2) and dims (0,) must be as many"),
    (lambda: ops.diagonal(X, 0, 1, -1), "diagonal(): dimensions 1 and -1 are the same"),
    (lambda: mint.std(Tensor([1, 2])), "std(): input is Int64, not a floating-point tensor"),
    (lambda: mint.nn.functional.linear(5, X), "mint.nn.functional.linear(): input must be a tensor, not 5"),
    (lambda: X.reshape_as(5), "Tensor.reshape_as(): other must be a tensor, not 5"),
])  # fmt: skip
def test_messages(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as raised:
        call()
    assert raised.value.message == message

"""Holds public names against PyTorch by tables of cases: element type, shape, values and gradients, all differences.

`against.py` is for single calls in tests of their own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count, product, repeat
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from tests.shares import is_taken

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

COUNTED: Counter[str] = Counter()
"""How many values and gradients were compared in this run."""
Arrays = Sequence[np.ndarray]
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12, "complex64": 2e-6,
              "complex128": 1e-12}  # fmt: skip
"""Largest relative error, and the absolute one below 1, by the element type of a result: units in its last place."""
MANY = 40
"""Cases of a judge from which on a share of them is enough for gradients."""


@dataclass(frozen=True)
class Judge:
    """What one or more public names are held against.

    names: as scripts write them: "ops.sqrt", "mint.sqrt", "Tensor.sqrt"; "ops.Sqrt" is made without arguments.
    theirs: the same in PyTorch, of tensors and then the arguments; what MindSpore decides (docs/numbers.md).
    inputs: lists of arrays, each list a case.
    arguments: what follows the tensors, each tuple a case. named: the same by name.
    refused: element types of inputs that mspc refuses, as MindSpore does.
    gradient: whether gradients are compared.
    loose: factor on the tolerance, for sums of many terms and such.
    ours: what is called instead of the public name, given it first.
    """

    names: tuple[str, ...]
    theirs: Callable[..., Any]
    inputs: Sequence[Arrays]
    arguments: Sequence[tuple[Any, ...]] = ((),)
    named: Sequence[dict[str, Any]] = ({},)
    refused: frozenset[str] = frozenset()
    gradient: bool = True
    loose: float = 1.0
    ours: Callable[..., Any] = field(default=lambda function, *args, **named: function(*args, **named))


_SIGNS: dict[str, Callable[..., Any]] = {
    "and_": lambda x, y: x & y,
    "or_": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "invert": lambda x: ~x,
}


def public(name: str) -> Callable[..., Any]:
    """The function behind a public name."""
    place, _, short = name.rpartition(".")
    if place == "operator":
        return _SIGNS[short]
    if place == "Tensor":
        return lambda x, *args, **named: getattr(x, short)(*args, **named)
    found = reduce(getattr, place.split("."), mspc)
    found = getattr(found, short)
    return found() if isinstance(found, type) else found


def differences(judge: Judge, name: str) -> list[str]:
    """What differs between the public name and its judge, one line for each case. The names of one judge lead to the
    same operators: gradients are compared in every case of the first, unless there are many, and in a share of the
    cases of the others."""
    function = public(name)
    found: list[str] = []
    cases = len(judge.inputs) * len(judge.arguments) * len(judge.named)
    every = name == judge.names[0] and cases < MANY
    turns = {
        (i, j): repeat(0) if every else count(i + j)
        for i, j in product(range(len(judge.arguments)), range(len(judge.named)))
    }
    with np.errstate(all="ignore"):
        for arrays, (i, arguments), (j, named) in product(
            judge.inputs, enumerate(judge.arguments), enumerate(judge.named)
        ):
            smooth = turns[i, j]
            text = _difference(judge, function, arrays, arguments, named, smooth)
            if text:
                case = ", ".join([*map(_shown, arrays), *map(str, arguments), *map(str, named.items())])
                found.append(f"{name}({case}): {text}")
    return found


def _shown(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}" if array.size > 6 else f"{array.dtype}{array.tolist()}"


def to_torch(array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)


def to_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.asnumpy()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.dtype == torch.bfloat16:
            return value.float().numpy().astype(ml_dtypes.bfloat16)
        return value.numpy()
    return np.asarray(value)


def flat(value: Any) -> list[Any]:
    return [part for item in value for part in flat(item)] if isinstance(value, tuple | list) else [value]


def _difference(
    judge: Judge, function: Any, arrays: Arrays, arguments: tuple[Any, ...], named: dict[str, Any],
    smooth: Iterator[int],
) -> str:  # fmt: skip
    """What differs in one case. smooth: places among the inputs whose gradients may be compared with these arguments,
    of which `is_taken` says whether they are: other inputs with other arguments."""
    refused = any(array.dtype.name in judge.refused for array in arrays)
    try:
        theirs = judge.theirs(*map(to_torch, arrays), *arguments, **named)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError) as error:
        if not refused:
            return f"the judge has no answer: {str(error).splitlines()[0]}"
        theirs = None
    try:
        ours = judge.ours(function, *map(Tensor, arrays), *arguments, **named)
    except MspcError as error:
        return "" if refused else f"refused: {error.message}"
    if refused:
        return "is not refused"
    COUNTED["values"] += 1
    text = unlike(ours, theirs, judge.loose)
    if text or not judge.gradient or not _smooth(arrays, theirs) or not is_taken(next(smooth)):
        return text
    COUNTED["gradients"] += 1
    text = unlike(*gradients(judge, function, arrays, arguments, named), 4 * judge.loose)
    return f"gradient: {text}" if text else ""


def unlike(ours: Any, theirs: Any, loose: float = 1.0) -> str:
    """How two results differ in number, shape, element type or value; "" where they are alike."""
    left, right = flat(ours), flat(theirs)
    if len(left) != len(right):
        return f"{len(left)} results instead of {len(right)}"
    for one, other in zip(map(to_array, left), map(to_array, right), strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{one.dtype}{list(one.shape)} instead of {other.dtype}{list(other.shape)}"
        tolerance = TOLERANCES.get(one.dtype.name, 0.0) * loose
        real = one.dtype.name in TOLERANCES and one.dtype.kind != "c"
        wide = [x.astype(np.float64) if real else x for x in (one, other)]
        if not np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{one.reshape(-1)[:6]} instead of {other.reshape(-1)[:6]}"
    return ""


def _smooth(arrays: Arrays, theirs: Any) -> bool:
    """Whether gradients are to be compared: of Float64, with finite inputs and elements, through floats."""
    floats = [x for x in arrays if x.dtype.kind == "f"]
    return bool(
        floats
        and all(x.dtype == np.float64 and x.size and np.isfinite(x).all() for x in floats)
        and any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in flat(theirs))
    )


def gradients(
    judge: Judge, function: Any, arrays: Arrays, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """(our gradients, theirs) of the weighted sum of all floating-point results, by every floating-point input."""
    inputs = [to_torch(x) for x in arrays]
    wanted = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
    for i in wanted:
        inputs[i].requires_grad_(True)
    results = flat(judge.theirs(*inputs, *arguments, **named))
    chosen = [i for i, part in enumerate(results) if part.is_floating_point()]
    weights = [np.random.default_rng(i).uniform(0.5, 1.5, tuple(results[i].shape)) for i in chosen]
    total = reduce(operator.add, [(results[i] * torch.tensor(w)).sum() for i, w in zip(chosen, weights, strict=True)])
    theirs: list[Any] = [torch.zeros_like(inputs[i]) for i in wanted]
    if total.requires_grad:
        found = torch.autograd.grad(total, [inputs[i] for i in wanted], allow_unused=True)
        theirs = [zero if grad is None else grad for zero, grad in zip(theirs, found, strict=True)]
    held = [Tensor(w) for w in weights]

    def loss(*tensors: Any) -> Any:
        parts = judge.ours(function, *tensors, *arguments, **named)
        parts = parts if isinstance(parts, tuple | list) else (parts,)
        terms = [(parts[i] * w).sum() for i, w in zip(chosen, held)]  # noqa: B905
        return sum(terms[1:], terms[0])

    return flat(mspc.grad(loss, tuple(wanted))(*map(Tensor, arrays))), theirs

"""Holds public names against PyTorch by tables of cases: element type, shape, values and gradients, all differences.

`against.py` is for single calls in tests of their own.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import count, product, repeat
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from tests.shares import PARTS, is_taken

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

COUNTED: Counter[str] = Counter()
"""How many values and gradients were compared in this run."""
Arrays = Sequence[np.ndarray]
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12, "complex64": 2e-6,
              "complex128": 1e-12}  # fmt: skip
"""Largest relative error, and the absolute one below 1, by the element type of a result: units in its last place."""
MANY = 12
"""Cases of a judge from which on a share of them is enough for gradients."""
OTHERS = 3
"""The values of a judge's other names are compared in one of so many cases."""
PARTS_OF_OTHERS = 12
"""The gradients of a judge's other names are compared in one of so many cases."""


@dataclass(frozen=True)
class Judge:
    """The judge of one or more public names.

    names: as scripts write them: "ops.sqrt", "mint.sqrt", "Tensor.sqrt"; "ops.Sqrt" is made without arguments.
    theirs: the same in PyTorch, of tensors and then the arguments; what MindSpore decides (docs/reference/numbers.md).
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


@dataclass(frozen=True)
class Case:
    """A judge's inputs and arguments. PyTorch's results are computed once for all public names."""

    judge: Judge
    arrays: Arrays
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join([*map(_shown, self.arrays), *map(str, self.arguments), *map(str, self.named.items())])

    @cached_property
    def refused(self) -> bool:
        """Whether an input has an element type that mspc refuses."""
        return any(array.dtype.name in self.judge.refused for array in self.arrays)

    @cached_property
    def theirs(self) -> Any:
        """PyTorch's results, or the error by which it refuses."""
        try:
            return self.judge.theirs(*map(to_torch, self.arrays), *self.arguments, **self.named)
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError) as error:
            return error

    @cached_property
    def smooth(self) -> bool:
        """Whether gradients are to be compared: of Float64, with finite inputs and elements, through floats."""
        floats = [x for x in self.arrays if x.dtype.kind == "f"]
        return bool(
            floats
            and all(x.dtype == np.float64 and x.size and np.isfinite(x).all() for x in floats)
            and any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in flat(self.theirs))
        )

    @cached_property
    def their_gradients(self) -> tuple[list[Any], dict[int, np.ndarray]]:
        """(gradients of a weighted sum of all floating-point results by every floating-point input, the weights by the
        places of these results)."""
        inputs = [to_torch(x) for x in self.arrays]
        wanted = [inputs[i].requires_grad_(True) for i in self.wanted]
        results = flat(self.judge.theirs(*inputs, *self.arguments, **self.named))
        chosen = [i for i, part in enumerate(results) if part.is_floating_point()]
        weights = {i: np.random.default_rng(i).uniform(0.5, 1.5, tuple(results[i].shape)) for i in chosen}
        total = reduce(operator.add, [(results[i] * torch.tensor(w)).sum() for i, w in weights.items()])
        zeros = [torch.zeros_like(x) for x in wanted]
        if not total.requires_grad:
            return zeros, weights
        found = torch.autograd.grad(total, wanted, allow_unused=True)
        return [zero if grad is None else grad for zero, grad in zip(zeros, found, strict=True)], weights

    @property
    def wanted(self) -> tuple[int, ...]:
        """The places of the floating-point inputs."""
        return tuple(i for i, x in enumerate(self.arrays) if x.dtype.kind == "f")

    def difference(self, function: Callable[..., Any], taken: Iterator[bool]) -> str:
        """How a public function differs, "" where it does not. taken: whether gradients are compared, for one
        case after the other in which they can be."""
        if isinstance(self.theirs, Exception) and not self.refused:
            return f"the judge has no answer: {str(self.theirs).splitlines()[0]}"
        try:
            ours = self.judge.ours(function, *map(Tensor, self.arrays), *self.arguments, **self.named)
        except MspcError as error:
            return "" if self.refused else f"refused: {error.message}"
        if self.refused:
            return "is not refused"
        COUNTED["values"] += 1
        text = unlike(ours, self.theirs, self.judge.loose)
        if text or not self.judge.gradient or not self.smooth or not next(taken):
            return text
        COUNTED["gradients"] += 1
        text = unlike(self.our_gradients(function), self.their_gradients[0], 4 * self.judge.loose)
        return f"gradient: {text}" if text else ""

    def our_gradients(self, function: Callable[..., Any]) -> list[Any]:
        """The gradients that a public function has of the same sum."""
        weights = self.their_gradients[1]
        chosen, held = list(weights), [Tensor(w) for w in weights.values()]
        ours, arguments, named = self.judge.ours, self.arguments, self.named

        def loss(*tensors: Any) -> Any:
            parts = ours(function, *tensors, *arguments, **named)
            parts = parts if isinstance(parts, tuple | list) else (parts,)
            terms = [(parts[i] * w).sum() for i, w in zip(chosen, held)]  # noqa: B905
            return sum(terms[1:], terms[0])

        return flat(mspc.grad(loss, self.wanted)(*map(Tensor, self.arrays)))


def differences(judge: Judge) -> list[str]:
    """The differences between the public names and their judge, one line for each name and case. The names of one judge
    lead to the same operators: values are compared in every case of the first and in a third of the others' cases,
    gradients in every case of the first, unless there are many, and in a smaller share of the others' cases, the first
    case always among them."""
    cases = len(judge.inputs) * len(judge.arguments) * len(judge.named)
    functions = {name: public(name) for name in judge.names}
    first = PARTS if cases >= MANY else 1
    parts_of = {name: PARTS_OF_OTHERS if place else first for place, name in enumerate(judge.names)}
    turns = {
        (name, i, j): map(is_taken, count(i + j), repeat(parts))
        for (name, parts), i, j in product(parts_of.items(), range(len(judge.arguments)), range(len(judge.named)))
    }
    found: list[str] = []
    with np.errstate(all="ignore"):
        for number, (arrays, (i, arguments), (j, named)) in enumerate(
            product(judge.inputs, enumerate(judge.arguments), enumerate(judge.named))
        ):
            case = Case(judge, arrays, arguments, named)
            texts = {
                name: case.difference(function, turns[name, i, j])
                for place, (name, function) in enumerate(functions.items())
                if not place or not number or is_taken(number + place, OTHERS)
            }
            found += [f"{name}({case}): {text}" for name, text in texts.items() if text]
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


def unlike(ours: Any, theirs: Any, loose: float = 1.0) -> str:
    """How two results differ in number, shape, element type or value; "" where they are alike."""
    left, right = flat(ours), flat(theirs)
    if len(left) != len(right):
        return f"{len(left)} results instead of {len(right)}"
    for one, other in zip(map(to_array, left), map(to_array, right), strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{one.dtype}{list(one.shape)} instead of {other.dtype}{list(other.shape)}"
        if (one == other).all():
            continue
        tolerance = TOLERANCES.get(one.dtype.name, 0.0) * loose
        real = one.dtype.name in TOLERANCES and one.dtype.kind != "c"
        wide = [x.astype(np.float64) if real else x for x in (one, other)]
        if not np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{one.reshape(-1)[:6]} instead of {other.reshape(-1)[:6]}"
    return ""

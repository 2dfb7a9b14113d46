"""A Parameter is never a compile-time constant: after it changes, so does each result that depends on it.

Cases are generated: methods of a constant tensor and functions of `ops` and `mint`, with a Parameter at each position
and of each kind for which NumPy's kernels take the call, and forms of Python (indices, slices, ranges, lists, `in`). A
compile may refuse a case. If it does not, its results before and after the parameter changes are those of the same
function on plain tensors, and its gradient is the difference of those.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, mint, nn, ops, value_and_grad
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.ops.method_table import method_names
from tests.shares import is_taken

CONSTANT = np.array([[0.9, 0.2, 0.35], [0.15, 0.7, 0.45], [0.25, 0.3, 0.55]])
VALUES: dict[str, np.ndarray] = {
    "matrix": np.array([[0.8, 0.33, 0.26], [0.4, 0.65, 0.16], [0.35, 0.55, 0.95]]),
    "vector": np.array([0.6, 0.44, 0.75]),
    "number": np.array(0.3),
    "place": np.array(1),
    "places": np.array([[0, 2, 1], [1, 0, 2], [2, 1, 0]]),
    "mask": np.array([[True, False, True], [False, False, True], [True, True, False]]),
}
ARGUMENTS = (*VALUES, "1", "0", "(3, 3)")
RANDOM = frozenset(
    "bernoulli cauchy log_normal multinomial random_categorical uniform new_empty resize qr svd lstsq".split()
)
FORMS = {
    "place": (
        "c[p]", "c[:, p]", "c[p, 0]", "c[p:]", "c[:, :p]", "c[::p]", "[1.0, 2.0, 3.0][p] * c", "(c, c * 2, c * 3)[p]",
        "[p, p][0] * c", "c[[p, p]]", "c[p][0]", "sum([1.0 for _ in range(p)]) * c", "c * p.item()", "c * int(p)",
        "c * (2 if p in (1, 5) else 3)", "c * (2 if 2 in [p, 7] else 3)", "c * (2 if p == 1 else 3)", "c * len([p])",
        "c * {0: 1.0, 1: 2.0, 2: 3.0}[p]", "c * np.float64(p)", "c.reshape(3, 3)[p]", "ops.zeros(p) + c[0, 0]",
        "c * Tensor(p)", "c * max(p, 1)", "c * [3, 2, 1][int(p)]", "c * p.asnumpy()", "c * p.tolist()",
        "c.tile((p, 1))", "c * bool(p)", "c * np.array([p])", "c * abs(p)", "c * divmod(p, 2)[0]",
        "c * sorted([p, 5])[0]", "c.sum(p)", "ops.roll(c, p, 0)", "mint.roll(c, p, 0)", "c.diagonal(p)",
        "ops.split(c, p, 0)[0]",
    ),
    "number": (
        "c * p", "p * c", "c ** p", "c * float(p)", "c * p.item()", "c * [p][0]", "c * (p, 2)[0]", "c * {'a': p}['a']",
        "ops.clamp(c, 0.0, p)", "c.clamp(max=p)", "c.clip(p, 2.0)", "ops.leaky_relu(c, p)", "mint.add(c, c, alpha=p)",
        "c * (2 if p > 0.35 else 3)", "c * min(p, 0.35)", "c * round(p, 1)", "c * tensor(p)", "ops.full_like(c, p)",
        "c * sum([p, p])", "ops.stack([c, c * 0 + p])", "mint.full((2,), p)", "c * np.sqrt(p)", "c * math.sqrt(p)",
        "c.masked_fill(c > 0.5, p)", "c.addcmul(c, c, value=p)", "c.lerp(c * 2, p)", "ops.dropout(c, p).shape[0] * c",
    ),
    "matrix": (
        "c @ p", "c * p[0]", "c + [row for row in p][1]", "c * p.T", "c * p.mean()", "ops.concat((c, p))",
        "ops.stack([p, c])", "c + Tensor(p)", "c.where(c > 0.5, p)", "ops.where(c > 0.5, c, p)", "c * p.asnumpy()",
        "c + np.array(p)", "sum(row for row in p) * c", "c * p.value()", "c.mul(other=p)", "c.add(p, alpha=2)",
        "p.T @ c", "ops.einsum('ij,jk->ik', c, p)", "c * p.max()", "c - list(p)[2]", "c * (p if len(p) == 3 else c)",
    ),
    "places": ("c[p]", "c[p[0]]", "c.gather(0, p)", "ops.gather(c, p, 0)", "c[p, 0]", "c.take(p)", "c[:, p[1]]"),
    "mask": (
        "c[p]", "c * p", "ops.where(p, c, c * 2)", "c.masked_fill(p, 0.5)", "c * (2 if p.any() else 3)", "c * p.all()",
    ),
}  # fmt: skip
"""Expressions over a constant tensor `c` and a Parameter `p`, by the kind of the Parameter."""

Case = tuple[str, str]
"""(an expression, the kind of its Parameter)."""


def calls() -> Iterator[Case]:
    """Yield calls of methods and functions with a Parameter at one position each."""
    names = [name for name in method_names() if not name.endswith("_") and name not in RANDOM]
    for name in (name for place, name in enumerate(names) if is_taken(place, 24)):
        yield from _calls_of(f"c.{name}(", lambda *args, n=name: getattr(Tensor(CONSTANT), n)(*args))
    for module, label in ((ops, "ops"), (mint, "mint")):
        functions = [name for name in names if hasattr(module, name)]
        for name in (name for place, name in enumerate(functions) if is_taken(place, 48)):
            function = getattr(module, name)
            yield from _calls_of(f"{label}.{name}(c, ", lambda *args, f=function: f(Tensor(CONSTANT), *args))


def _calls_of(text: str, function: Callable[..., Any]) -> Iterator[Case]:
    found: set[Any] = set()
    for count in (1, 2, 3):
        if count == 3 and found:
            return
        for names in product(ARGUMENTS, repeat=count):
            if not any(name in VALUES and (count, i, name) not in found for i, name in enumerate(names)):
                continue
            try:
                function(*(Tensor(VALUES[name]) if name in VALUES else eval(name) for name in names))
            except Exception:  # arguments of a kind that this function does not take
                continue
            for i, name in enumerate(names):
                if name in VALUES and (count, i, name) not in found:
                    found.add((count, i, name))
                    others = (f"Tensor(VALUES[{n!r}])" if n in VALUES else n for n in names)
                    yield text + ", ".join("p" if j == i else other for j, other in enumerate(others)) + ")", name


def forms() -> Iterator[Case]:
    every = [(expression, kind) for kind, expressions in FORMS.items() for expression in expressions]
    return (case for place, case in enumerate(every) if is_taken(place, 3))


def changed(value: np.ndarray) -> np.ndarray:
    if value.dtype == bool:
        return ~value
    return value * 0.8 + 0.1 if value.dtype.kind == "f" else (value + 1) % 3


def functions_of(cases: list[Case], folder: Path) -> list[Callable[..., Any]]:
    """Return a function of (c, p) for each expression, with a source file for the front end."""
    lines = ["import math", "import numpy as np", "from mspc import Tensor, mint, ops, tensor"]
    lines += [f"from {__name__} import VALUES"]
    for place, (expression, _) in enumerate(cases):
        lines += [f"def case_{place}(c, p):", f"    return {expression}"]
    file = folder / "generated_cases.py"
    file.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location("generated_cases", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [getattr(module, f"case_{place}") for place in range(len(cases))]


def arrays(result: Any) -> list[np.ndarray]:
    if isinstance(result, tuple | list):
        return [array for item in result for array in arrays(item)]
    return [result.asnumpy() if isinstance(result, Tensor) else np.asarray(result)]


def total(result: Any) -> Any:
    """Return a weighted sum of the floating-point results, or None if there are none."""
    found = None
    for item in result if isinstance(result, tuple | list) else [result]:
        if isinstance(item, Tensor) and item.dtype.is_float:
            steps = Tensor(np.cos(np.arange(item.size)).reshape(item.shape))
            found = (item * steps).sum() if found is None else found + (item * steps).sum()
    return found


class Holder(nn.Cell):
    """Calls a function with a constant and a Parameter."""

    def __init__(self, function: Callable[..., Any], value: np.ndarray) -> None:
        super().__init__()
        self.c = Tensor(CONSTANT)
        self.p = Parameter(Tensor(value), name="p", requires_grad=value.dtype.kind == "f")
        self.function = function

    def construct(self) -> Any:
        return self.function(self.c, self.p)


class Loss(nn.Cell):
    def __init__(self, network: Holder) -> None:
        super().__init__()
        self.network = network

    def construct(self) -> Any:
        return total(self.network())


def judged(function: Callable[..., Any], kind: str) -> str:
    """Return how a case ends: refused, right, or why it is wrong."""
    value = VALUES[kind]
    after = changed(value)
    try:
        want = [arrays(function(Tensor(CONSTANT), Tensor(each))) for each in (value, after)]
    except Exception:
        return "not possible outside of a network"
    if all(np.array_equal(*pair, equal_nan=True) for pair in zip(*want, strict=False)):
        return "shows nothing"
    network = Holder(function, value)
    try:
        got = [arrays(network())]
    except MspcError as error:
        has_place = re.match(r"\S+generated_cases\.py:\d+:\d+: error: ", str(error))
        return "refused" if has_place else f"without a place: {error}"
    network.p.set_data(Tensor(after))
    got.append(arrays(network()))
    for each, right in zip(got, want, strict=True):
        same = len(each) == len(right) and all(map(_close, each, right))
        if not same:
            return "wrong after the change" if each is got[1] else "wrong"
    return _gradient(function, network, after) if value.dtype.kind == "f" else "right"


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-6, equal_nan=True)


def _gradient(function: Callable[..., Any], network: Holder, at: np.ndarray) -> str:
    base = total(function(Tensor(CONSTANT), Tensor(at)))
    if base is None or base.dtype.itemsize < 8:
        return "right"
    step = 1e-5
    want = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        shifted = [np.array(at), np.array(at)]
        shifted[0][place] += step
        shifted[1][place] -= step
        high, low = (float(total(function(Tensor(CONSTANT), Tensor(each)))) for each in shifted)
        want[place] = (high - low) / (2 * step)
    try:
        _, (gradient,) = value_and_grad(Loss(network), None, (network.p,))()
    except MspcError:
        return "right, gradient refused"
    return "right" if np.allclose(gradient.asnumpy(), want, 1e-4, 1e-5) else "wrong gradient"


@pytest.mark.parametrize("generate", [calls, forms])
def test_results_follow_a_parameter(generate: Callable[[], Iterator[Case]], tmp_path: Path) -> None:
    cases = list(generate())
    ends = [judged(f, kind) for f, (_, kind) in zip(functions_of(cases, tmp_path), cases, strict=True)]
    counts = Counter(ends)
    print(f"{generate.__name__}: {len(cases)} cases: {dict(sorted(counts.items()))}")
    wrong = [f"{case[0]} with p a {case[1]}: {end}" for case, end in zip(cases, ends, strict=True) if end[0] == "w"]
    assert not wrong, "\n".join(wrong)
    assert counts["right"] >= len(cases) // 4

"""Operators that change parameters, against PyTorch: what the parameter holds afterwards is also what they return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch

ROWS = np.array([[4, 0], [4, 2]], np.int32)
DIFFERENT = np.array([[4, 0], [1, 2]], np.int32)
PLACES = np.array([[4, 1], [0, 2], [4, 1]], np.int32)
KINDS = [np.float64, np.float32, np.float16, np.int32, np.int64]
COMBINED = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": lambda x, y: x / y,
    "Max": torch.maximum, "Min": torch.minimum, "Update": lambda x, y: y,
}  # fmt: skip


def drawn(seed: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    return floats(seed, *shape, low=1.0, high=9.0).round(1 if np.dtype(kind).kind == "f" else 0).astype(kind)


def changed(x: np.ndarray, places: np.ndarray, updates: np.ndarray, combine: Any) -> np.ndarray:
    """Places of x, one after the other, combined with their updates."""
    held = torch.tensor(x)
    for place, update in zip(places, updates, strict=True):
        at = tuple(np.atleast_1d(place).tolist())
        held[at] = combine(held[at], torch.tensor(update)).to(held.dtype)
    return held.numpy()


def check(made: Any, x: np.ndarray, places: np.ndarray, updates: np.ndarray, expected: np.ndarray) -> None:
    parameter = Parameter(Tensor(x), "x")
    result = made(parameter, Tensor(places), Tensor(updates))
    near(parameter.asnumpy(), expected, "parameter")
    near(result.asnumpy(), expected, "result")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Max", "Min", "Update", "Div"])
def test_rows(how: str, kind: Any) -> None:
    rows = DIFFERENT if how == "Update" else ROWS
    x, updates = drawn(1, (5, 3), kind), drawn(2, (2, 2, 3), kind)
    expected = changed(x, rows.reshape(-1), updates.reshape(4, 3), COMBINED[how])
    if how != "Div" or np.dtype(kind).kind == "f":
        check(getattr(ops, f"Scatter{how}")(), x, rows, updates, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["Add", "Sub", "Update"])
def test_elements(how: str, kind: Any) -> None:
    places = PLACES[:2] if how == "Update" else PLACES
    x, updates = drawn(3, (5, 3, 2), kind), drawn(4, (len(places), 2), kind)
    check(getattr(ops, f"ScatterNd{how}")(), x, places, updates, changed(x, places, updates, COMBINED[how]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "how"), [
    ("Assign", "Update"), ("AssignAdd", "Add"), ("AssignSub", "Sub"),
    ("assign", "Update"), ("assign_add", "Add"), ("assign_sub", "Sub"),
])  # fmt: skip
def test_whole_parameters(name: str, how: str, kind: Any) -> None:
    x, update = drawn(7, (5, 3), kind), drawn(8, (5, 3), kind)
    parameter = Parameter(Tensor(x), "x")
    made = getattr(ops, name)
    (made() if isinstance(made, type) else made)(parameter, Tensor(update))
    near(parameter.asnumpy(), COMBINED[how](torch.tensor(x), torch.tensor(update)).numpy())

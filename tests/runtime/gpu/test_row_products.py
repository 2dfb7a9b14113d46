"""Products of runs of rows: which rows go in which lane, and what cuBLASLt, played by NumPy, is told of each."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from mspc.runtime.gpu.row_runs import Run, lanes_of, matrices_without_runs, rows_outside, runs_of, sample_runs
from tests.runtime.gpu.fake_gpu import FakeArray, fake


def test_runs_follow_each_other_and_the_rest_is_zeros() -> None:
    given = [(0, slice(0, 3)), (1, slice(3, 3)), (2, slice(4, 6)), (0, slice(6, 99))]
    runs = runs_of(given, 8)
    assert runs == [Run(0, 0, 3), Run(2, 4, 6), Run(0, 6, 8)]
    assert runs_of(given, 8, summed=True) == [*runs[:2], Run(0, 6, 8, adds=True)]
    assert list(rows_outside(runs, 9)) == [slice(3, 4), slice(8, 9)]
    assert list(matrices_without_runs(runs, 4)) == [1, 3]


def test_lanes_have_as_many_rows_and_keep_sums_together() -> None:
    runs = [Run(i, 10 * i, 10 * i + 10) for i in range(5)]
    assert [[run.matrix for run in lane] for lane in lanes_of(runs, 2)] == [[0, 2, 4], [1, 3]]
    sums = [Run(0, 0, 9), Run(1, 9, 10), Run(0, 10, 12, adds=True), Run(2, 12, 13), Run(1, 13, 14, adds=True)]
    assert [[run.matrix for run in lane] for lane in lanes_of(sums, 2)] == [[0, 0], [1, 2, 1]]


@pytest.mark.parametrize(("rows", "matrices"), [(1024, 8), (1024, 3), (5, 8), (1, 1)])
def test_foreseen_runs_are_uneven_and_within_the_rows(rows: int, matrices: int) -> None:
    runs = sample_runs(rows, matrices, 4)
    assert len(runs) <= 4
    assert all(0 <= run.begin < run.end <= rows for run in runs)
    assert rows < 8 or matrices == 1 or len({run.end - run.begin for run in runs}) > 1


class Playing:
    """cuBLASLt and the device: arrays are found by their addresses. refused: numbers of rows that algorithms refuse."""

    def __init__(self, arrays: list[Any], outer: bool, transpose_b: bool) -> None:
        self.arrays, self.outer, self.transpose_b = arrays, outer, transpose_b
        self.rows: dict[str, int] = {}
        self.refused: set[int] = set()
        self.streams: list[str] = ["compute"]
        self.ran: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def stream(self, name: str) -> Any:
        self.streams.append(name)
        yield
        self.streams.pop()

    def at(self, address: int) -> tuple[Any, int]:
        """The array that an address lies in, and the number of its entry there."""
        array = next(a for a in self.arrays if a.ctypes.data <= address < a.ctypes.data + a.nbytes)
        return np.asarray(array), (address - array.ctypes.data) // array.strides[0]

    def set_rows(self, layout: str, _: Any, address: int, nbytes: int) -> None:
        self.rows[layout] = ctypes.c_uint64.from_address(address).value

    def matmul(self, handle: int, description: str, alpha: int, b: int, first: str, a: int, second: str, beta: int,
               c: int, third: str, d: int, target: str, algorithm: int, room: int, size: int, stream: int) -> None:
        count = self.rows["second"]
        if count in self.refused and algorithm != EXPECTED.ctypes.data:
            raise Refused
        (x, at), (y, of), (out, to) = self.at(a), self.at(b), self.at(d)
        adds = ctypes.c_float.from_address(beta).value
        if self.outer:
            assert self.rows["first"] == count
            made = x[at : at + count].T @ y[of : of + count]
            out[to] = made + out[to] if adds else made
        else:
            assert self.rows["target"] == count
            made = x[at : at + count] @ (y[of].T if self.transpose_b else y[of])
            out[to : to + count] = made + out[to : to + count] if adds else made
        self.ran.append((self.streams[-1], room, count))


class Refused(Exception):
    """cuBLASLt's error."""


EXPECTED = np.zeros(1)


class Room(FakeArray):
    """A slice of it can be set to zeros."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        def zeros(*_: Any) -> None:
            self[...] = 0

        return SimpleNamespace(ptr=self.ctypes.data, memset_async=zeros)


class Chosen:
    """Choices, each of which ends as the number that is given, once all ways were tried."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._found: set[Any] = set()

    def choose(self, key: Any, count: int, seconds: Any) -> None:
        assert all(seconds(i) == 0 for i in range(count))
        self._found.add(key)

    def seconds(self, launch: Any) -> float:
        launch()
        return 0.0

    def __contains__(self, key: Any) -> bool:
        return key in self._found

    def __getitem__(self, key: Any) -> int:
        return self._number


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Modules of the GPU runtime, loaded with what stands in for nvmath; they are forgotten again."""
    names = [f"mspc.runtime.gpu.{name}" for name in ("matmul",)]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    for each in ("nvmath", "nvmath.bindings", "nvmath.bindings.cublas", "nvmath.bindings.cublasLt"):
        monkeypatch.setitem(sys.modules, each, MagicMock())
    yield lambda name: importlib.import_module(f"mspc.runtime.gpu.{name}")
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.parametrize("kind", ["rows", "transposed", "outer"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_products_of_runs(
    kind: str, lanes: int, loaded: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    outer, transposed = kind == "outer", kind == "transposed"
    module = loaded("matmul")
    draw = np.random.default_rng(0)
    x = fake(draw.standard_normal((32, 4), np.float32))
    y = fake(draw.standard_normal((32, 8) if outer else (4, 8, 4) if transposed else (4, 4, 8), np.float32))
    out = fake(np.full((4, 4, 8) if outer else (32, 8), np.nan, np.float32)).view(Room)
    play = Playing([x, y, out], outer, transposed)
    play.refused = {5}
    lt = SimpleNamespace(
        matmul=play.matmul, matrix_layout_set_attribute=play.set_rows, cuBLASLtError=Refused,
        MatrixLayoutAttribute=SimpleNamespace(COLS="columns"),
    )  # fmt: skip
    monkeypatch.setattr(module, "lt", lt)
    bound = SimpleNamespace(
        key=("bound",), description="product", new_layouts=lambda: ("first", "second", "target"),
        factors=lambda: (np.ones(1, np.float32), (np.zeros(1, np.float32), np.ones(1, np.float32))),
        expected=lambda count, layouts: EXPECTED,
    )  # fmt: skip
    device = SimpleNamespace(signal=lambda: "event", wait=lambda event: None, stream=play.stream)
    products = SimpleNamespace(
        bound=lambda *_: bound, choices=Chosen(module._LANES.index(lanes)), device=device, deterministic=False,
        handle=1, choose=lambda key, product, seconds: seconds(77), algorithm=lambda key: 77, stream=lambda: 7,
        workspace_of=lambda lane: SimpleNamespace(data=SimpleNamespace(ptr=lane)), current=lambda: None,
    )  # fmt: skip
    multiply = module.RowProducts(products, x, y, out, transposed, outer)
    out[...] = np.nan
    play.ran.clear()
    runs = [(2, slice(0, 7)), (0, slice(7, 12)), (3, slice(12, 12)), (2, slice(16, 30))]
    multiply(runs)
    wanted = np.zeros(out.shape, np.float32)
    for matrix, rows in runs:
        if outer:
            wanted[matrix] += np.asarray(x)[rows].T @ np.asarray(y)[rows]
        else:
            wanted[rows] = np.asarray(x)[rows] @ (np.asarray(y)[matrix].T if transposed else np.asarray(y)[matrix])
    np.testing.assert_allclose(np.asarray(out), wanted, rtol=1e-6)
    ways = {("compute", 0), ("products", 1)} if lanes == 2 else {("compute", 0)}
    assert {(stream, room) for stream, room, _ in play.ran} == ways


class Strided:
    """A product of a batch, of operands that are found again by what cuBLASLt is told of them."""

    made = 0

    def __init__(self, module: Any, batch: int, *arrays: Any) -> None:
        Strided.made += 1
        self.x, self.y, self.out = (self._seen(module._matrix(array, False, batch), array, batch) for array in arrays)

    @staticmethod
    def _seen(matrix: Any, array: Any, batch: int) -> Any:
        size, strides = array.itemsize, (matrix.stride, matrix.pitch, 1)
        shape = batch, matrix.columns, matrix.rows
        return np.lib.stride_tricks.as_strided(np.asarray(array), shape, [size * n for n in strides])

    def __call__(self) -> None:
        self.out[...] = self.x @ self.y


@pytest.mark.parametrize("shape", [(1, 2, 4, 6), (2, 4, 6)])
@pytest.mark.parametrize("turned", [True, False])
def test_products_of_places_go_along_either_dimension(
    shape: tuple[int, ...], turned: bool, loaded: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = loaded("matmul")
    monkeypatch.setattr(Strided, "made", 0)

    def bound(products: Any, x: Any, y: Any, out: Any, *rest: Any) -> Any:
        return Strided(module, int(np.prod(out.shape[:-2])), x, y, out)

    monkeypatch.setattr(module, "BoundProduct", bound)
    monkeypatch.setattr(module, "_TYPES", {"float32": 0})
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((5, 2, 3, 4), np.float32), draw.standard_normal(shape, np.float32)
    out = np.full((5, 2, 3, 6), np.nan, np.float32)
    fastest = SimpleNamespace(multiprocessors=0, fastest=lambda key, launches: launches[0 if turned else 1])
    module.Products(SimpleNamespace(choices=fastest)).launch(x, y, out, False, False)()
    np.testing.assert_allclose(out, x @ y, rtol=1e-6)
    assert Strided.made == 2 + 5

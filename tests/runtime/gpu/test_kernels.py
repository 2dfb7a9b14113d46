"""Kernels of CUDA C++: each source is compiled once, beside the host and beside others, and loaded before it is due."""

import contextlib
import ctypes
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest

from mspc.runtime.device_choice import GpuMemory
from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import EQUAL_SHARE, Choices, StoredChoices
from mspc.runtime.gpu.kernels import KernelCache
from mspc.runtime.gpu.row_runs import Run, lanes_of, matrices_without_runs, rows_outside, runs_of, sample_runs
from tests.gpu.emulated import EmulatedGpu
from tests.runtime.gpu.fake_gpu import FakeArray, fake


class Library:
    """In place of CuPy: modules whose compiler waits until two of them are at work, where `together` says so."""

    def __init__(self, together: bool = False) -> None:
        self.compiled: list[str] = []
        self.launched: list[tuple[Any, ...]] = []
        self.loaded: list[str] = []
        self.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(use=lambda: None))
        self._meeting = threading.Barrier(2, timeout=30) if together else None

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # CuPy's name
        source = code[code.rindex("//") :]

        def get_function(name: str) -> Any:
            if source not in self.compiled:
                if self._meeting is not None:
                    self._meeting.wait()
                self.compiled.append(source)
            if "wrong" in source:
                raise ValueError(f"{source} has no {name}")
            self.loaded.append(name)
            return Function(self, name)

        return SimpleNamespace(get_function=get_function)


class Function:
    max_dynamic_shared_size_bytes = 0

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int
    ) -> None:
        self._library.launched.append((self._name, grid, block, arguments, shared_mem))


def test_a_source_is_compiled_once_for_all_its_kernels() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    first, second = kernels.kernel("// one", "first"), kernels.kernel("// one", "second")
    assert kernels.kernel("// one", "first") is first
    first(3, 32, [np.int32(1)])
    second((2, 2), 64, [], shared=1 << 16)
    assert library.compiled == ["// one"]
    assert library.launched == [("first", (3,), (32,), (np.int32(1),), 0), ("second", (2, 2), (64,), (), 1 << 16)]


@pytest.mark.skipif(KernelCache(Library(), 0).threads < 2, reason="this process has one core")
def test_sources_are_compiled_beside_each_other() -> None:
    library = Library(together=True)
    kernels = KernelCache(library, 0)
    kernels.kernel("// one", "first")
    kernels.kernel("// two", "second")
    kernels.wait()
    assert sorted(library.compiled) == ["// one", "// two"]


def test_all_are_loaded_before_something_waits_for_them() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    hold, free = kernels.kernel("// one", "hold"), kernels.kernel("// one", "free")
    kernels.wait()
    loaded = list(library.loaded)
    hold(1, 1, ())
    free(1, 1, ())
    assert library.loaded == loaded


def test_what_the_compiler_says_comes_when_kernels_are_loaded_with_the_node_that_asked() -> None:
    kernels = KernelCache(Library(), 0)
    kernels.node = "the node"
    kernel = kernels.kernel("// wrong", "first")
    kernels.node = "another one"
    for load in (kernels.wait, lambda: kernel(1, 1, ())):
        with pytest.raises(ValueError, match="has no first") as caught:
            load()
        assert caught.value.node == "the node"  # type: ignore[attr-defined]  # it is put there


class Clocks:
    """A device of one stream that remembers when it will be done. host, done: seconds."""

    deterministic = False

    def __init__(self) -> None:
        self.host = self.done = 0.0

    def perf_counter(self) -> float:
        return self.host

    def work(self, host: float, seconds: float) -> None:
        self.host += host
        self.done = max(self.done, self.host) + seconds

    def kernel(self, source: str, name: str) -> Any:
        assert name == "pause"
        return lambda grid, block, arguments: self.work(5e-6, 1e-9 * float(arguments[0]))

    def signal(self, timed: bool = False) -> Any:
        self.work(2e-6, 0)
        return Event(self.done)

    def milliseconds(self, first: Any, second: Any) -> float:
        return 1000 * (second.came - first.came)


class Event:
    def __init__(self, came: float) -> None:
        self.came = came

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("host", [1e-6, 100e-6, 400e-6])
def test_launches_that_take_the_host_long_are_told_apart(monkeypatch: pytest.MonkeyPatch, host: float) -> None:
    device = Clocks()
    monkeypatch.setattr(choices_module, "time", device)
    found = Choices(device, StoredChoices(None))
    for wanted in (30e-6, 50e-6, 31e-6):
        assert found.seconds(lambda: device.work(host, wanted)) == pytest.approx(wanted)  # noqa: B023


def test_a_host_that_waits_for_the_gpu_does_not_pause_it_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Clocks()
    monkeypatch.setattr(choices_module, "time", device)

    def launch() -> None:
        device.work(0, 0.05)
        device.host = device.done

    began = device.host
    assert Choices(device, StoredChoices(None)).seconds(launch) == pytest.approx(0.05, rel=0.01)
    assert device.host - began < 9 * 0.05


def test_much_slower_ways_are_launched_twice_after_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device, ways, taken = Clocks(), (0.002, 0.05, 0.001), [0, 0, 0]
    monkeypatch.setattr(choices_module, "time", device)
    found = Choices(device, StoredChoices(None))

    def launch(way: int) -> None:
        taken[way] += 1
        device.work(1e-6, ways[way])

    found.choose("ways", 3, lambda i: found.seconds(lambda: launch(i)))
    assert (found["ways"], taken) == (2, [8, 3, 8])


@pytest.fixture
def gpu(tmp_path: Path) -> EmulatedGpu:
    return EmulatedGpu(tmp_path)


def chosen(gpu: EmulatedGpu, times: list[float]) -> int:
    gpu.choices.choose("ways", len(times), lambda i: times[i])
    return gpu.choices["ways"]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([1.0, 1.0 - EQUAL_SHARE / 2], 0),  # as good, and expected to be better
        ([1.0, 1.0 - 2 * EQUAL_SHARE], 1),
        ([float("inf"), 1.0, 0.99], 1),
        ([1.5, 1.2, 1.0, 1.01], 2),
    ],
)
def test_first_of_those_that_are_as_fast(gpu: EmulatedGpu, times: list[float], wanted: int) -> None:
    assert chosen(gpu, times) == wanted


def test_memory_has_numbers_of_every_type_before_ways_are_timed(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 16,), "uint8")
    with gpu.choices.within(memory):
        assert not memory.any()
        chosen(gpu, [2.0, 1.0])
    kinds: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
    for kind in kinds:
        values = memory.view(kind).astype(np.float64)
        assert np.abs(values).max() <= 2
        assert np.abs(values).min() > 0
        assert 0.4 < (values > 0).mean() < 0.6
        assert np.unique(values).size > min(1000, values.size // 2)


def test_memory_keeps_what_it_has_behind_the_context(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        pass
    chosen(gpu, [2.0, 1.0])
    assert not memory.any()


def test_memory_gets_numbers_once(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        chosen(gpu, [2.0, 1.0])
        memory[...] = 0
        gpu.choices.choose("others", 2, lambda i: float(i))
    assert not memory.any()


def test_where_one_way_is_there_nothing_is_timed(gpu: EmulatedGpu) -> None:
    memory = gpu.zeros((1 << 10,), "uint8")
    with gpu.choices.within(memory):
        chosen(gpu, [1.0])
    assert not memory.any()


def test_what_the_host_holds_is_not_fetched_from_the_gpu() -> None:
    constant = np.arange(3)
    assert GpuMemory(SimpleNamespace()).fetch(constant) is constant  # the device would be asked to receive it


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

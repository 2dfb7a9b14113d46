"""The pool of threads in C++: every part is done once, whoever calls it, and in forked processes, too."""

import ctypes
import functools
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import gemm, products, thread_pool
from mspc.ops.cpu.gemm import FEW_ROWS
from mspc.ops.cpu.loops.library import compiler, library_of
from tests.grouped import each
from tests.serving import HANG, run_process

COUNTS = r"""
typedef long long i64;
// a[0]: how often every part was done, a[1]: how long a part is.
extern "C" void count(void* const* a, i64 first, i64 last) {
    for (i64 part = first; part < last; ++part) {
        volatile i64 spent = 0;
        while (spent < *(i64*)a[1]) spent = spent + 1;
        ++((i64*)a[0])[part];
    }
}
"""
Counted = Callable[..., Any]


@pytest.fixture(scope="module")
def counting() -> Any:
    if thread_pool.pool() is None:
        pytest.skip("no C++ compiler")
    count = library_of(compiler(), COUNTS, ["count"]).count
    count.argtypes = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong]
    return count


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "thread_count", lambda: 3)


def counted(function: Any, parts: int, calls: int = 1, length: int = 0, first: int = 0) -> Any:
    """How often parts were done in so many calls."""
    counts, long = np.zeros(first + parts, np.int64), np.full(1, length, np.int64)
    table = (ctypes.c_void_p * 2)(counts.ctypes.data, long.ctypes.data)
    run = thread_pool.on_all_threads(function, first, first + parts)
    for _ in range(calls):
        run(table)
    return counts


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("length", [0, 100])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_part_is_done_once(
    parts: int, length: int, threads: int, counting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "thread_count", lambda: threads)
    np.testing.assert_array_equal(counted(counting, parts, 20, length), 20)


def test_parts_begin_where_they_are_said_to(counting: Any, three_threads: None) -> None:
    np.testing.assert_array_equal(counted(counting, 10, first=5), [0] * 5 + [1] * 10)


def test_many_calls_in_a_row_and_after_sleep(counting: Any, three_threads: None) -> None:
    np.testing.assert_array_equal(counted(counting, 13, 20_000), 20_000)
    for _ in range(5):
        time.sleep(0.002)  # workers sleep by now
        np.testing.assert_array_equal(counted(counting, 13, 1, 1000), 1)


def test_workers_take_their_share(counting: Any, three_threads: None) -> None:
    """Calls that take a second on one thread: another has run for a good part of it."""
    begun = time.process_time(), time.thread_time()
    counted(counting, 64, 20, 300_000)
    all_threads, this_thread = time.process_time() - begun[0], time.thread_time() - begun[1]
    assert all_threads > 1.2 * this_thread


def test_several_threads_of_python_call_at_the_same_time(counting: Any, three_threads: None) -> None:
    found: list[Any] = []
    callers = [threading.Thread(target=lambda: found.append(counted(counting, 31, 2000, 50))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(HANG)
        assert not caller.is_alive()
    assert len(found) == 4
    np.testing.assert_array_equal(found, 2000)


def test_a_forked_process_has_workers_of_its_own(counting: Any, three_threads: None) -> None:
    counted(counting, 31, 100, 50)
    child = os.fork()
    if not child:
        signal.alarm(60)
        begun = time.process_time(), time.thread_time()
        right = (counted(counting, 64, 20, 300_000) == 20).all()
        took = time.process_time() - begun[0] > 1.2 * (time.thread_time() - begun[1])
        os._exit(0 if right and took else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(counted(counting, 31, 100, 50), 100)


def test_a_fork_while_another_thread_calls(counting: Any, three_threads: None) -> None:
    ended = threading.Event()

    def call() -> None:
        while not ended.is_set():
            counted(counting, 31, 50, 500)

    caller = threading.Thread(target=call)
    caller.start()
    statuses: list[int] = []
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.alarm(60)
                os._exit(0 if (counted(counting, 31, 100, 50) == 100).all() else 1)
            statuses.append(os.waitpid(child, 0)[1])
    finally:
        ended.set()
        caller.join(HANG)
        assert not caller.is_alive()
    assert statuses == [0] * 10


@pytest.mark.parametrize("end", ["", "time.sleep(0.01)", "threading.Thread(target=call, daemon=True).start()"])
def test_processes_end_whatever_workers_do(end: str, counting: Any) -> None:
    script = f"""
import threading, time
import numpy as np
from mspc.ops.cpu import gemm, products
gemm.SHARED, gemm.thread_count = 1, lambda: 3
x = np.ones((256, 256))
def call():
    while True:
        products.multiplied(x, x)
products.multiplied(x, x)
{end}
"""
    ended = run_process(sys.executable, "-c", script)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_a_compiler_threads_are_python_s(counting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "pool", lambda: None)
    monkeypatch.setattr(thread_pool, "thread_count", lambda: 3)
    seen: list[tuple[int, int]] = []
    thread_pool.on_all_threads(lambda table, first, last: seen.append((first, last)), 2, 12)(None)
    assert sorted(seen) == list(itertools.pairwise([2, 5, 8, 12]))


SHAPES = [
    ((40, 7), (7, 9)),
    ((3, 7), (7, 50)),
    ((8, 5, 6), (8, 6, 7)),
    ((8, 5, 6), (6, 7)),
    ((1, 5, 6), (8, 6, 7)),
    ((2, 5, 6), (2, 6, 9)),
    ((2, 1, 5, 6), (2, 4, 6, 7)),
    ((4, 5, 6), (9, 1, 6, 7)),
    ((1, 4), (4, 1)),
    ((3, 33, 20), (3, 20, 70)),
    ((5, 1, 6), (6, 8)),
    ((2, 3, 4, 5, 6), (2, 3, 4, 6, 5)),
    ((40, 5), (5, 1)),
]
IN_ORDER, TURNED, INSIDE = 0, 1, 2
"""Where the elements of a matrix of a batch lie: row by row, column by column, rows of all matrices in turns."""


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Without a compiler. The number to which BLAS's threads are set, which was 7."""
    seen: list[int] = []
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    monkeypatch.setattr(products, "multiplied_in_parts", lambda *_: False)
    monkeypatch.setattr(gemm, "is_loaded", lambda: False)
    for module in (gemm, products):
        monkeypatch.setattr(module, "blas_threads", lambda: (lambda: 7, seen.append))
    return seen


def lying(array: Any, order: int) -> Any:
    """A copy of matrices whose elements lie so."""
    if order == TURNED:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -2, 0)), 0, -2) if order == INSIDE else array.copy()


def has_loops() -> bool:
    return Path("/proc/cpuinfo").exists() and "avx512f" in Path("/proc/cpuinfo").read_text()


def shared_out(monkeypatch: pytest.MonkeyPatch, threads: int, by: str) -> None:
    """Share out every product to so many threads."""
    for module in (products, gemm):
        monkeypatch.setattr(module, "SHARED", 1)
        monkeypatch.setattr(module, "thread_count", lambda: threads)
    monkeypatch.setattr(products, "WORTH", 1)
    loops = {"loops": 1, "few rows": 2}.get(by, 0)
    monkeypatch.setattr(gemm, "by_loops", lambda rows, *_: loops if rows <= FEW_ROWS else min(loops, 1))
    monkeypatch.setattr(gemm, "plan_of", functools.cache(gemm.plan_of.__wrapped__))
    if by == "Python":
        monkeypatch.setattr(gemm, "plan_of", lambda *_: None)


@pytest.mark.parametrize("by", ["Python", "BLAS", "loops", "few rows"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_equal_numpy(threads: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_out(monkeypatch, threads, by)
    each(compare_product, [(*shapes, dtype) for shapes in SHAPES for dtype in (np.float32, np.float64)])


def compare_product(left: tuple[int, ...], right: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(left).astype(dtype), rng.random(right).astype(dtype)
    for orders in itertools.product((IN_ORDER, TURNED, INSIDE), (IN_ORDER, TURNED, INSIDE), (IN_ORDER, TURNED)):
        out = lying(np.full((x @ y).shape, np.nan, dtype), orders[2])
        assert products.product(lying(x, orders[0]), lying(y, orders[1]), out) is out
        np.testing.assert_allclose(out, x @ y, rtol=1e-5 if dtype is np.float32 else 1e-12)


SIZES = [*itertools.product(("BLAS", "loops"), (1, 5, 14, 64, 120)), *(("few rows", m) for m in (1, 2, 3, 4, 5, 8, 16))]


@pytest.mark.parametrize(("by", "rows"), SIZES)
def test_sizes_that_blocks_do_not_divide(by: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_out(monkeypatch, 2, by)
    each(compare_sizes, itertools.product([rows], (7, 16, 32, 530), (1, 16, 259, 1100)))


def compare_sizes(rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((rows, depth), np.float32), rng.random((depth, columns), np.float32)
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    for orders in itertools.product((IN_ORDER, TURNED), (IN_ORDER, TURNED)):
        around = np.full((rows, columns + 3), np.nan, np.float32)
        products.product(lying(x, orders[0]), lying(y, orders[1]), around[:, :columns])
        np.testing.assert_allclose(around[:, :columns], wanted, rtol=1e-5)
        assert np.isnan(around[:, columns:]).all()


@pytest.mark.parametrize("by", ["Python", "BLAS", "loops", "few rows"])
@pytest.mark.parametrize("depth", [20, 300])
@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
def test_what_is_added_behind_a_product(
    by: str, depth: int, transposes: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_out(monkeypatch, 3, by)
    rng = np.random.default_rng(0)
    rows = 5 if by == "few rows" else 33
    shapes = [(3, depth, rows) if transposes[0] else (3, rows, depth), (70, depth) if transposes[1] else (depth, 70)]
    x, y, addend, bias = (rng.random(shape, np.float32) for shape in (*shapes, (3, rows, 70), (70,)))
    plain = (x.swapaxes(1, 2) if transposes[0] else x) @ (y.T if transposes[1] else y)
    kernel = products.product_kernel(*transposes)
    for more in itertools.product((None, addend), (None, bias, rng.random(140, np.float32)[::2])):
        wanted = plain + sum(array for array in more if array is not None)
        for out in (np.zeros_like(wanted), lying(np.zeros_like(wanted), TURNED)):
            for _ in range(2):  # as laid out before
                out[...] = np.nan
                assert kernel(x, y, out, *more) is out
                np.testing.assert_allclose(out, wanted, rtol=1e-5)


@pytest.mark.parametrize("loaded", [False, True])
def test_small_products_compile_nothing(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(x: Any, y: Any, out: Any, addend: Any = None, bias: Any = None) -> bool:
        seen.append(x.shape[0])
        return False

    monkeypatch.setattr(products, "is_loaded", lambda: loaded)
    monkeypatch.setattr(products, "multiplied_in_parts", noted)
    for size in (8, 32, 256):
        products.multiplied(np.ones((size, size)), np.ones((size, size)))
    assert seen == ([32, 256] if loaded else [256])


def test_a_node_s_product_sees_that_arrays_are_others() -> None:
    kernel = products.product_kernel(False, True)
    out = np.zeros((64, 64))
    for number in range(4):
        x, y = np.full((64, 64), float(number)), np.full((64, 64), 1.0)
        np.testing.assert_array_equal(kernel(x, y, out), 64 * number)
        x[...] = 2
        np.testing.assert_array_equal(kernel(x, y, out), 128)


@pytest.mark.skipif(not has_loops(), reason="BLAS makes all products here, whose parts depend on where they begin")
@pytest.mark.parametrize("by", ["loops", "few rows"])
@pytest.mark.parametrize("order", [IN_ORDER, TURNED])
@pytest.mark.parametrize(
    ("left", "right"),
    [((64, 700), (700, 300)), ((5, 300, 70), (5, 70, 64)), ((9, 40, 70), (70, 8)), ((16, 1100), (1100, 16)),
     ((3, 1100), (1100, 100))],
)  # fmt: skip
def test_the_number_of_threads_changes_no_bit(
    left: tuple[int, ...], right: tuple[int, ...], order: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x, y = lying(rng.random(left, np.float32), order), lying(rng.random(right, np.float32), order)
    found: list[Any] = []
    for threads in (1, 2, 5):
        shared_out(monkeypatch, threads, by)
        found.append(products.product(x, y, np.zeros((x @ y).shape, np.float32)))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_few_rows_are_added_up_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where y lies row by row, and there are loops for either."""
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 1100), np.float32), rng.random((1100, 96), np.float32)
    found: list[Any] = []
    for rows, by in ((40, "loops"), (16, "few rows"), (3, "few rows")):
        shared_out(monkeypatch, 2, by)
        found.append(products.product(x[:rows], y, np.zeros((rows, 96), np.float32)))
    if has_loops():
        np.testing.assert_array_equal(found[1], found[0][:16])
        np.testing.assert_array_equal(found[2], found[0][:3])


def test_which_products_are_of_few_rows() -> None:
    """A weight that comes from memory; rows of a turned one that are long enough for partial sums."""
    for rows, columns, depth, turned, by in (
        (1, 4096, 1024, False, 2), (16, 1024, 1024, False, 2), (16, 1024, 1024, True, 2), (17, 1024, 1024, False, 1),
        (1, 256, 256, False, 0), (16, 8192, 64, True, 1), (4, 8192, 64, True, 2), (1, 8, 1 << 20, False, 0),
    ):  # fmt: skip
        assert gemm.by_loops(rows, columns, depth, False, turned) == by


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [
        (np.ones((4, 5), np.float16), np.ones((5, 6), np.float16), np.zeros((4, 6), np.float16)),
        (np.ones((4, 5)), np.ones((5, 6), np.float32), np.zeros((4, 6))),
        (np.ones((4, 10))[:, ::2], np.ones((5, 6)), np.zeros((4, 6))),
        (np.ones((4, 5))[::-1], np.ones((5, 6)), np.zeros((4, 6))),
        (np.ones((4, 0)), np.ones((0, 6)), np.zeros((4, 6))),
        (np.ones((4, 5), np.int64), np.ones((5, 6), np.int64), np.zeros((4, 6), np.int64)),
    ],
    ids=["halves", "several types", "elements apart", "backwards", "nothing to add up", "integers"],
)
def test_what_blas_does_not_take(x: Any, y: Any, out: Any) -> None:
    assert not gemm.multiplied_in_parts(x, y, out)
    np.testing.assert_array_equal(products.product(x, y, out), x @ y)


def test_blas_has_its_threads_again_after_a_product() -> None:
    found = gemm.blas_threads()
    if found is None:
        pytest.skip("NumPy has another BLAS")
    get, set_to = found
    before = get()
    set_to(2)
    try:
        products.multiplied(np.ones((64, 64)), np.ones((64, 64)))
        assert get() == 2
        with gemm.one_blas_thread():
            products.multiplied(np.ones((64, 64)), np.ones((64, 64)))
            assert get() == 1
        assert get() == 2
    finally:
        set_to(before)


@pytest.mark.parametrize("shared", [1, 1000])
def test_the_threads_of_blas_are_set_back(shared: int, in_python: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ALONE", 1)
    monkeypatch.setattr(products, "SHARED", shared)
    with pytest.raises(ValueError, match="mismatch"):
        products.product(np.zeros((4, 5)), np.zeros((6, 7)), np.zeros((4, 7)))
    assert in_python == [1, 7]


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 6)), ((60, 50), (50, 40)), ((3, 1, 20, 30), (2, 30, 40)), ((30,), (30, 400)), ((400, 30), (30,))],
)  # fmt: skip
def test_products_without_a_place_wake_no_threads_of_blas(
    left: tuple[int, ...], right: tuple[int, ...], in_python: list[int]
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(left), rng.random(right)
    np.testing.assert_allclose(products.multiplied(x, y), x @ y, rtol=1e-12)
    matrices = len(left) > 1 and len(right) > 1
    assert in_python == ([1, 7] if matrices and x.size * right[-1] >= products.ALONE else [])

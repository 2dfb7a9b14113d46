"""The pool of threads in C++: every part is done once, whoever calls it, and in forked processes, too."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops.library import compiler, library_of
from tests.conftest import HANG

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
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_a_compiler_threads_are_python_s(counting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "pool", lambda: None)
    monkeypatch.setattr(thread_pool, "thread_count", lambda: 3)
    seen: list[tuple[int, int]] = []
    thread_pool.on_all_threads(lambda table, first, last: seen.append((first, last)), 2, 12)(None)
    assert sorted(seen) == list(itertools.pairwise([2, 5, 8, 12]))

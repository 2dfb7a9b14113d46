"""Work that goes row by row or element by element passes over memory once, in blocks, without temporaries of its
size."""

from __future__ import annotations

import ctypes
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import gemm
from mspc.ops.cpu.special_functions import erf
from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad
from mspc.ops.optim.optimizer import SGD, Adam, AdamWeightDecay, ApplyMomentum, Update
from mspc.ops.random.dropout import Dropout
from mspc.ops.random.words import keep_mask, mixed, random_words
from tests.ops.backend import BACKEND

SHAPE = (64, 1 << 15)


def drawn(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).random(shape, np.float32)


def temporaries(call: Callable[[], Any]) -> int:
    """The most bytes that a call had beside its results."""
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak - sum(array.nbytes for array in (result if isinstance(result, tuple) else (result,)))


def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread has a block of its own."""
    monkeypatch.setattr("mspc.ops.cpu.blocks.thread_count", lambda: 1)


def test_rows_of_scores_have_no_temporaries_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one_thread(monkeypatch)
    x, out = drawn(SHAPE, 0), np.empty(SHAPE, np.float32)
    for op, operands in ((LogSoftmax(), (x,)), (LogSoftmaxGrad(), (np.log(x + 0.5), x))):
        kernel = op.kernel_into(BACKEND)
        assert kernel is not None
        made = temporaries(lambda kernel=kernel, operands=operands: kernel(*operands, out=out)) + out.nbytes
        assert made < x.nbytes / 2  # the result was there before
        np.testing.assert_array_equal(out[:3], op.run(BACKEND, *[operand[:3] for operand in operands]))
        assert op.in_place
        kernel(*operands, out=operands[-1])
        np.testing.assert_array_equal(operands[-1], out)


def test_dropout_draws_without_words_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one_thread(monkeypatch)
    x = drawn(SHAPE, 0)
    assert temporaries(lambda: Dropout(0.5, 1, 2).run(BACKEND, x)) < x.nbytes / 2


@pytest.mark.parametrize(
    ("shape", "begin", "local"),
    [
        ((), (), ()), ((0, 3), (0, 0), (0, 3)), ((4, 6, 2), (2, 0, 0), (2, 6, 2)), ((4, 6, 3), (1, 2, 1), (2, 3, 2)),
        ((2, 4, 8), (0, 0, 5), (2, 4, 1)), ((1, 1, 7), (0, 0, 2), (1, 1, 3)), ((70000, 3), (1, 1), (69000, 2)),
        ((2, 300000), (1, 5), (1, 200000)), ((300000,), (7,), (290000,)),
    ],
)  # fmt: skip
def test_words_of_a_slice_are_those_of_its_places(
    shape: tuple[int, ...], begin: tuple[int, ...], local: tuple[int, ...]
) -> None:
    """Also where a slice is drawn in several blocks; each number is found from its place by itself."""
    words = random_words(np, 12345, shape, begin, local)
    assert words.shape == local
    places = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    places = places[tuple(slice(b, b + n) for b, n in zip(begin, local, strict=True))].reshape(-1)
    golden = 0x9E3779B97F4A7C15
    for i in {0, 1, len(places) // 3, 65535, 65536, len(places) - 1} & set(range(len(places))):
        assert int(words.reshape(-1)[i]) == mixed((int(places[i]) * golden + 12345 + golden) % 2**64)


@pytest.mark.parametrize(
    ("shape", "begin", "local"),
    [
        ((), (), ()), ((0, 3), (0, 0), (0, 3)), ((5, 33), (0, 0), (5, 33)),
        ((3, 5, 64), (0, 2, 16), (3, 2, 32)), ((4, 6, 40), (1, 2, 7), (2, 3, 29)),
        ((2, 4, 8), (0, 0, 5), (2, 4, 1)), ((70000, 3), (1, 1), (69000, 2)), ((2, 300000), (1, 5), (1, 200000)),
        ((300000,), (16,), (280000,)),
    ],
)  # fmt: skip
def test_masks_of_a_slice_are_those_of_its_places(
    shape: tuple[int, ...], begin: tuple[int, ...], local: tuple[int, ...]
) -> None:
    """Sixteen bits of a word decide, found here from each place by itself."""
    mask = keep_mask(np, 12345, shape, begin, local, 0.3)
    assert mask.shape == local
    assert mask.dtype == bool
    places = list(np.ndindex(local))
    golden = 0x9E3779B97F4A7C15
    for i in {0, 1, 20, len(places) // 3, 65535, 65536, len(places) - 1} & set(range(len(places))):
        place = tuple(p + b for p, b in zip(places[i], begin, strict=True))
        group, rest = divmod(int(np.ravel_multi_index(place, shape)) if shape else 0, 16)
        word = mixed(((4 * group + rest % 8 // 2) * golden + 12345 + golden) % 2**64)
        bits = word >> 16 * (rest % 2 + rest // 8 * 2) & 0xFFFF
        assert mask[places[i]] == (bits < round(0.3 * 65536))
    if len(places) > 1000:
        assert abs(mask.mean() - 0.3) < 0.01


@pytest.mark.parametrize(("keep_prob", "share"), [(1.0, 1.0), (1e-9, 0.0), (0.75, 0.75)])
def test_masks_have_their_share(keep_prob: float, share: float) -> None:
    mask = keep_mask(np, 7, (100, 1000), (0, 0), (100, 1000), keep_prob)
    assert mask.mean() == pytest.approx(share, abs=0.01 if 0 < share < 1 else 0)


@pytest.mark.parametrize(
    "op", [ApplyMomentum(True), SGD(weight_decay=0.1), SGD(nesterov=True), Adam(use_nesterov=True), AdamWeightDecay()]
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_updates_in_blocks_are_those_of_the_whole(op: Update, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one_thread(monkeypatch)

    def operands() -> list[Any]:
        return [
            np.float32(momentum if name == "momentum" else 0.3) if i in op.scalars else drawn(SHAPE, i)
            for i, name in enumerate(op.operands)
        ]

    whole, blocks, grouped = operands(), operands(), operands()
    expected = op.run(BACKEND, *whole)
    kernel = op.kernel(BACKEND)
    assert temporaries(lambda: (kernel(*blocks), np.empty(0))[1]) < blocks[0].nbytes
    results = GroupedUpdate.of(op, 1).kernel(BACKEND)(*grouped)
    for found in (blocks, grouped):
        for i in op.mutates:
            np.testing.assert_array_equal(found[i], whole[i])
    assert len(results) == op.outputs
    for result, wanted in zip(results, expected if op.outputs > 1 else (expected,), strict=True):
        np.testing.assert_array_equal(result, wanted)


# The OpenBLAS of NumPy's wheels: its threads and its products as C++ calls them.


_BY_ROWS, _AS_IT_IS, _TURNED = 101, 111, 112


@pytest.mark.parametrize(("before", "after"), [(8, [2]), (2, []), (1, [])])
def test_ranks_limit_blas(before: int, after: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(gemm, "thread_count", lambda: 2)
    monkeypatch.setattr(gemm, "blas_threads", lambda: (lambda: before, seen.append))
    gemm.limit_blas()
    assert seen == after


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, ctypes.c_float), (np.float64, ctypes.c_double)])
def test_a_product_by_its_address(dtype: type, number: type) -> None:
    address = gemm.gemm_address(np.dtype(dtype))
    if address is None:
        pytest.skip("NumPy has another BLAS")
    size, pointer, kind = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    product = ctypes.CFUNCTYPE(
        None, kind, kind, kind, size, size, size, number, pointer, size, pointer, size, number, pointer, size
    )(address)
    rng = np.random.default_rng(0)
    x, y, out = rng.random((3, 4)).astype(dtype), rng.random((5, 4)).astype(dtype), np.ones((3, 5), dtype)
    places = (array.ctypes.data for array in (x, y, out))
    product(_BY_ROWS, _AS_IT_IS, _TURNED, 3, 5, 4, 1, next(places), 4, next(places), 4, 1, next(places), 5)
    np.testing.assert_allclose(out, x @ y.T + 1, rtol=1e-6)


def test_other_element_types_have_no_product() -> None:
    assert gemm.gemm_address(np.dtype(np.float16)) is None


# The error function, against the C library's.


GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize("x", [
    GENERATOR.uniform(-7, 7, 20000), GENERATOR.uniform(-1, 1, 20000), GENERATOR.uniform(-1e-2, 1e-2, 20000),
    10.0 ** GENERATOR.uniform(-300, 1, 20000), (np.arange(-400, 400) + 0.5) / 64,
])  # fmt: skip
def test_three_units_in_the_last_place(x: Any) -> None:
    expected = np.array([math.erf(value) for value in x])
    apart = np.abs(erf(np, x) - expected) / np.spacing(np.abs(expected))
    assert apart.max() <= 3
    assert apart.mean() <= 0.6


def test_what_is_no_ordinary_number() -> None:
    with np.errstate(all="raise"):
        found = erf(np, np.array([[np.nan, np.inf], [-np.inf, 0.0]]))
    np.testing.assert_array_equal(found, [[np.nan, 1.0], [-1.0, 0.0]])
    assert erf(np, np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert erf(np, np.asarray(0.5)).shape == ()
    assert erf(np, np.ones(3, np.float16)).dtype == np.float16

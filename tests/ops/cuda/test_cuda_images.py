"""The kernels of pooling and of the statistics of channels, run on the CPU beside NumPy's."""

import itertools
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mspc.ops.convolution import pooling
from mspc.ops.convolution.pooling import Pooling
from mspc.ops.convolution.window import ImageOperator, last_order
from mspc.ops.cuda.depthwise import depthwise, launch_of, work_of
from mspc.ops.device import Sliding
from mspc.runtime.gpu.convolution import Convolutions
from tests.gpu.emulated import EmulatedGpu
from tests.graphs import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, REGISTRY, DType, dtype_of
from tests.operators import BatchStatistics, ChannelStatistics, JoinMovingStatistics, MovingStatistics
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.ops.cuda.depthwise_cases import KINDS, Case, plain, same, seen, shapes_of

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
NUMPY: Any = SimpleNamespace(xp=np)
ERRORS = {"BFloat16": 2**-6, "Float16": 2**-9, "Float32": 2e-5, "Float64": 1e-11}
POOLING = [kind for kind in REGISTRY.values() if isinstance(kind, type) and issubclass(kind, Pooling)]


def placed(device: EmulatedGpu, array: Any) -> Any:
    found = device.empty(array.shape, array.dtype)
    found[...] = array
    return found


def pooled(kind: type[Any]) -> Iterator[tuple[ImageOperator, list[Any]]]:
    """Every sample of an operator, whose values repeat, with channels second and last."""
    generator = np.random.default_rng(1)
    for sample in kind.samples:
        op = kind(**sample.fields)
        arrays = [np.round(generator.normal(size=shape), 1) for shape in sample.shapes]
        if len(arrays) == 3:  # a gradient of the greatest, which reads the result
            forward = REGISTRY[kind.__name__.removesuffix("Grad")](**sample.fields)
            arrays[1] = forward.run(NUMPY, arrays[0])
        yield op, arrays
        order = last_order(op.dims + 2)
        yield op.with_channels_last(), [np.ascontiguousarray(array.transpose(order)) for array in arrays]


@pytest.mark.parametrize(("dtype", "most"), [(FLOAT32, 4), (BFLOAT16, 2)], ids=str)
def test_pooling_equals_numpys(tmp_path: Path, dtype: DType, most: int) -> None:
    device: Any = EmulatedGpu(tmp_path)
    work: list[tuple[Any, Any, Any]] = []
    for kind in POOLING:
        for op, arrays in islice(pooled(kind), most):
            inputs = [placed(device, array.astype(dtype.numpy)) for array in arrays]
            wanted = op.kernel(NUMPY)(*[array.astype(np.float64) for array in inputs])
            out = device.empty(wanted.shape, dtype.numpy)
            launch = op.launch(device, out, *inputs)
            assert launch is not None, op
            work.append((launch, out, wanted))
    assert len(work) == most * len(POOLING) >= 8 * most
    for launch, out, wanted in work:
        launch()
        np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=ERRORS[dtype.name], atol=ERRORS[dtype.name])


def test_a_nan_is_the_greatest(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    x = placed(device, np.array([1, np.nan, 3, np.nan, -np.inf, -np.inf, 2, 2], np.float32).reshape(1, 1, 2, 4))
    op = pooling.MaxPool(kernel_size=2, strides=2)
    found = device.empty((1, 1, 1, 2), np.float32)
    forward = op.launch(device, found, x)
    given, spread = placed(device, np.ones((1, 1, 1, 2), np.float32)), device.empty(x.shape, np.float32)
    gradient = pooling.MaxPoolGrad(kernel_size=2, strides=2).launch(device, spread, x, found, given)
    assert forward is not None
    assert gradient is not None
    forward()
    gradient()
    assert np.isnan(found).all()
    assert spread.reshape(-1).tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


SHAPES = [(3, 5, 4, 8), (2, 3, 3, 5), (70, 24), (1, 4, 4, 256), (130, 1), (6, 64, 3, 3, 2), (1, 2)]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_statistics_equal_numpys(tmp_path: Path, dtype: DType) -> None:
    """Far from 0 too, where sums of squares would have no digits left."""
    device: Any = EmulatedGpu(tmp_path)
    device.multiprocessors = 3
    work: list[tuple[Any, Any, Any]] = []
    for number, shape in enumerate(SHAPES):
        for axis in {1, len(shape) - 1}:
            x = (np.random.default_rng(number).normal(size=shape) + 100 * (number % 2)).astype(dtype.numpy)
            kind = FLOAT64 if dtype == FLOAT64 else FLOAT32
            moving = [np.full(shape[axis], value, kind.numpy) for value in (0.5, 2)]
            op = BatchStatistics(0.25, axis)
            given = [placed(device, array) for array in (x, *moving)]
            out = tuple(device.empty((shape[axis],), kind.numpy) for _ in range(2))
            launch = op.launch(device, out, *given)
            wide = [x.astype(np.float64), *(array.astype(np.float64) for array in moving)]
            wanted = [*op.run(NUMPY, *wide), *wide[1:]]
            work.append((launch, [*out, *given[1:]], wanted))
            own = device.empty((1, 2, shape[axis]), kind.numpy)
            alone = ChannelStatistics(axis)
            work.append((alone.launch(device, own, *given[:1]), [own], [alone.run(NUMPY, wide[0])]))
    for launch, found, wanted in work:
        launch()
        for got, array in zip(found, wanted, strict=True):
            error = 1e-11 if dtype == FLOAT64 else 1e-5
            np.testing.assert_allclose(got, array, rtol=error, atol=error)


def test_a_stopped_step_moves_no_statistics(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = 1
    given = [placed(device, np.arange(12, dtype=np.float32).reshape(4, 3)), *(np.ones(3, np.float32) for _ in "ab")]
    out = tuple(device.empty((3,), np.float32) for _ in range(2))
    launch = BatchStatistics(0.5).launch(device, out, *given)
    assert launch is not None
    launch()
    assert out[0].tolist() == [4.5, 5.5, 6.5]
    assert given[1].tolist() == given[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("stop", [False, True])
def test_statistics_of_all_ranks(tmp_path: Path, stop: bool) -> None:
    """Those of ranks that have as many elements, joined, are those of all elements."""
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = stop
    x = np.random.default_rng(4).normal(size=(6, 300, 5)).astype(np.float32) + 100
    gathered = np.concatenate([ChannelStatistics().run(NUMPY, part) for part in np.split(x, 3)])
    moving = [np.full(300, value, np.float32) for value in (0.5, 2)]
    given = [placed(device, array) for array in (gathered, *moving)]
    out = tuple(device.empty((300,), np.float32) for _ in "ab")
    launch = JoinMovingStatistics(0.25, 30).launch(device, out, *given)
    assert launch is not None
    launch()
    wide = x.astype(np.float64)
    found = [wide.mean((0, 2)), wide.var((0, 2)), *moving]
    if not stop:
        found[2:] = moving[0] * 0.75 + found[0] * 0.25, moving[1] * 0.75 + found[1] * 30 / 29 * 0.25
    for got, wanted in zip((*out, *given[1:]), found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("stop", [False, True])
def test_moving_statistics_of_all_ranks(tmp_path: Path, stop: bool) -> None:
    device: Any = EmulatedGpu(tmp_path)
    device.stop[...] = stop
    given = [placed(device, np.array(values, np.float32)) for values in ([1, 2], [3, 5], [7, 9], [4, 6])]
    before = [array.copy() for array in given]
    out = device.empty((2,), np.float32)
    op = MovingStatistics(0.25, 5)
    launch = op.launch(device, out, *given)
    assert launch is not None
    launch()
    assert out.tolist() == [1, 2]
    if not stop:
        op.run(NUMPY, *before)
    for got, wanted in zip(given, before, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert dtype_of(out.dtype) == FLOAT32


DEPTHWISE_ERRORS = {"BFloat16": 2**-7, "Float16": 2**-10, "Float32": 2e-6, "Float64": 1e-14}
"""The largest error, relative to the largest value."""


def arrays_of(device: EmulatedGpu, case: Case, dtype: DType, seed: int) -> dict[str, Any]:
    """Normal numbers, in memory with channels last."""
    generator = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, shape in shapes_of(case).items():
        found[name] = device.empty(shape, dtype.numpy)
        found[name][...] = generator.normal(size=shape)
    return found


class Run(NamedTuple):
    """Something to launch, and what it should make of operands."""

    launch: Any
    out: Any
    wanted: Any
    name: str


def runs(device: Any, kind: str, case: Case, dtype: DType, seed: int = 1, every: bool = False) -> Iterator[Run]:
    """One for each candidate; every: for each tile that there could be."""
    windows = (case.rows, case.columns)
    arrays = arrays_of(device, case, dtype, seed)
    operands = {"forward": ("image", "weight"), "image": ("result", "weight"), "weight": ("result", "image")}[kind]
    wanted = plain(kind, case, *(arrays[name].astype(np.float64) for name in operands))
    made = {"forward": "result"}.get(kind, kind)
    work = work_of(device, kind, *seen(arrays), windows)
    count = len(work.choices()) if work is not None and every else len(depthwise(device, kind, *seen(arrays), windows))
    assert count
    for number in range(count):
        own = arrays | {made: device.empty(arrays[made].shape, dtype.numpy)}
        if every:
            work = work_of(device, kind, *seen(own), windows)
            assert work is not None
            launch = launch_of(work, work.choices()[number])
        else:
            launch = depthwise(device, kind, *seen(own), windows)[number]
        yield Run(launch, own[made], wanted, f"{kind} {number} of {case}, {dtype}")


def check(work: Sequence[Run], dtype: DType) -> None:
    for run in work:
        run.launch()
        error = DEPTHWISE_ERRORS[dtype.name] * max(1, np.abs(run.wanted).max(initial=0))
        np.testing.assert_allclose(run.out.astype(np.float64), run.wanted, rtol=0, atol=error, err_msg=run.name)


WINDOWS = [Case((2, 9, 11, 5), (k, k), same(k), same(k)) for k in range(1, 8)] + [
    Case((1, 8, 6, 3), (3, 1), same(3), same(1)),
    Case((1, 5, 13, 8), (1, 5), same(1), same(5)),
]
SLIDES = [
    Case((2, 11, 9, 5), (3, 3), Sliding(1, 0, 2, 1), Sliding(0, 1, 2, 1)),
    Case((1, 12, 17, 3), (7, 7), same(7, stride=2), same(7, stride=2)),
    Case((1, 13, 14, 3), (5, 2), Sliding(2, 1, 3, 1), Sliding(0, 3, 2, 1)),
    Case((1, 10, 10, 3), (2, 2), Sliding(0, 0, 3, 1), Sliding(1, 1, 3, 1)),
    Case((1, 15, 12, 3), (3, 5), same(3, 3), same(5, 2)),
    Case((1, 16, 19, 2), (4, 3), Sliding(3, 4, 2, 3), Sliding(2, 2, 3, 2)),
    Case((1, 9, 9, 2), (3, 3), Sliding(-2, 1, 1, 1), Sliding(1, -3, 2, 1)),
    Case((1, 6, 7, 2), (3, 3), Sliding(4, 5, 1, 1), Sliding(5, 3, 1, 1)),
]
SIZES = [
    Case((n, side, 14, c), (3, 3), same(3), same(3)) for n, side, c in [(3, 1, 1), (2, 7, 96), (1, 3, 130), (3, 5, 8)]
] + [
    Case((2, 6, 5, 3), (3, 3), same(3), same(3, stride=2), multiplier=2),
    Case((2, 20, 1, 4), (5, 1), same(5), same(1)),
]
LARGE = [
    Case((1, 20, 21, 3), (15, 15), same(15), same(15)),
    Case((1, 12, 40, 2), (9, 17), same(9, stride=2), same(17, stride=2)),
    Case((2, 14, 5, 3), (31, 3), same(31), same(3)),
]


@pytest.mark.share(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cases", [WINDOWS, SLIDES, SIZES], ids=["windows", "slides", "sizes"])
def test_convolutions_equal_sums(tmp_path: Path, cases: Sequence[Case], kind: str) -> None:
    device: Any = EmulatedGpu(tmp_path)
    cases = [case for case in cases if kind != "image" or case.multiplier == 1]
    check([run for case in cases for run in runs(device, kind, case, FLOAT32)], FLOAT32)


def test_large_windows_have_gradients_of_weights_alone(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    check([run for case in LARGE for run in runs(device, "weight", case, FLOAT32)], FLOAT32)
    for kind in ("forward", "image"):
        case = LARGE[0]
        assert not depthwise(device, kind, *seen(arrays_of(device, case, FLOAT32, 1)), (case.rows, case.columns))


EVERY = [
    Case((2, 8, 9, 5), (5, 5), same(5), same(5)),
    Case((1, 9, 12, 3), (3, 4), Sliding(1, 1, 2, 1), Sliding(2, 1, 2, 1)),
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("kind", "dtype"), [
    *itertools.product(KINDS, (FLOAT32, FLOAT64)), ("forward", FLOAT16), ("image", BFLOAT16), ("weight", FLOAT16)
], ids=str)  # fmt: skip
def test_every_tile_in_every_type(tmp_path: Path, kind: str, dtype: DType) -> None:
    device: Any = EmulatedGpu(tmp_path)
    work = [run for case in EVERY for run in runs(device, kind, case, dtype, every=True)]
    assert len(work) >= 10 if kind != "image" else 8
    check(work, dtype)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_gradients_of_weights_by_blocks_that_take_turns(tmp_path: Path, dtype: DType) -> None:
    """The same bits at every run."""
    device: Any = EmulatedGpu(tmp_path)
    device.multiprocessors = 3
    case = Case((10, 9, 30, 40), (3, 8), same(3), same(8))
    work = work_of(device, "weight", *seen(arrays_of(device, case, dtype, 1)), (case.rows, case.columns))
    assert work is not None
    chosen = min(work.choices(), key=lambda sizes: sizes.cost).constants
    assert chosen["ITEMS"] > 2 * chosen["TURN"]
    assert chosen["SHARES"] > 2
    assert chosen["PARTX"] < 8
    found = list(runs(device, "weight", case, dtype))
    check(found, dtype)
    before = found[0].out.copy()
    found[0].out[...] = 0
    found[0].launch()
    assert np.array_equal(found[0].out, before)


@pytest.mark.parametrize("kind", ["forward", "image"])
@pytest.mark.parametrize(("size", "dilation"), [((3, 5), 1), ((3, 3), 2)])
def test_what_is_not_finite_goes_where_windows_meet_it(
    tmp_path: Path, size: tuple[int, int], dilation: int, kind: str
) -> None:
    device: Any = EmulatedGpu(tmp_path)
    case = Case((1, 9, 11, 3), size, same(size[0], dilation), same(size[1], dilation))
    arrays = arrays_of(device, case, FLOAT32, 3)
    read = arrays["image" if kind == "forward" else "result"]
    read[0, 3, 4, 0], read[0, 5, 1, 1], read[0, 0, 0, 2] = np.nan, np.inf, -np.inf
    wanted = plain(kind, case, read.astype(np.float64), arrays["weight"].astype(np.float64))
    assert np.isnan(wanted).any()
    assert np.isposinf(wanted).any()
    assert np.isneginf(wanted).any()
    made = arrays["result" if kind == "forward" else "image"]
    launches = depthwise(device, kind, *seen(arrays), (case.rows, case.columns))
    assert launches
    for launch in launches:
        made[...] = 7
        launch()
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_a_nan_reaches_the_weights(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    case = Case((1, 9, 11, 3), (3, 5), same(3), same(5))
    arrays = arrays_of(device, case, FLOAT32, 3)
    arrays["result"][0, 3, 4, 0], arrays["image"][0, 4, 5, 2] = np.nan, np.inf
    (launch, *_) = depthwise(device, "weight", *seen(arrays), (case.rows, case.columns))
    launch()
    assert np.isnan(arrays["weight"][0]).all()
    assert np.isfinite(arrays["weight"][1]).all()
    assert not np.isfinite(arrays["weight"][2]).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [Case((0, 4, 4, 3), (3, 3), same(3), same(3)),
                                  Case((2, 0, 4, 3), (3, 3), Sliding(2, 2, 1, 1), same(3)),
                                  Case((2, 2, 4, 3), (3, 3), Sliding(0, 0, 1, 1), same(3))], ids=str)  # fmt: skip
def test_nothing_adds_up_to_zeros(tmp_path: Path, case: Case, kind: str) -> None:
    device: Any = EmulatedGpu(tmp_path)
    for run in runs(device, kind, case, FLOAT32):
        run.launch()
        assert not run.out.any()


def test_what_has_no_kernel(tmp_path: Path) -> None:
    device: Any = EmulatedGpu(tmp_path)
    case = Case((2, 6, 6, 4), (3, 3), same(3), same(3))
    image, weight, result = seen(arrays_of(device, case, FLOAT32, 1))
    windows = (case.rows, case.columns)
    second = np.ascontiguousarray(image)
    assert not depthwise(device, "forward", second, weight, result, windows)
    assert not depthwise(device, "forward", image, np.repeat(weight, 2, axis=1), result, windows)
    assert not depthwise(device, "forward", image, weight.astype(np.float64), result, windows)
    several = Case((2, 6, 6, 4), (3, 3), same(3), same(3), multiplier=2)
    assert not depthwise(device, "image", *seen(arrays_of(device, several, FLOAT32, 1)), windows)
    wide = Case((1, 3, 400, 32), (1, 399), same(1), same(399))
    assert not depthwise(device, "forward", *seen(arrays_of(device, wide, FLOAT32, 1)), (wide.rows, wide.columns))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_which_kernels_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool, kind: str
) -> None:
    """Beside cuDNN's the time chooses; where it must not, mspc's own run."""
    device: Any = EmulatedGpu(tmp_path)
    device.deterministic = deterministic
    tried: list[int] = []
    ran: list[str] = []

    def fastest(choice: tuple[Any, ...], launches: Sequence[Any]) -> Any:
        tried.append(len(launches))
        return launches[0]

    monkeypatch.setattr(device, "fastest", fastest)
    monkeypatch.setattr(Convolutions, "_launches", lambda *_: [lambda: ran.append("cuDNN")])
    case = Case((2, 9, 10, 4), (3, 3), same(3), same(3))
    image, weight, result = seen(arrays_of(device, case, FLOAT32, 1))
    windows = (case.rows, case.columns)
    convolutions = Convolutions(device)
    assert convolutions.launch(kind, {"image": image, "weight": weight, "result": result}, windows) is not None
    names = {name for _, name in device.sources}
    own = {"forward": "depthwise", "image": "depthwise_image_gradient", "weight": "depthwise_weight_gradient"}[kind]
    assert own in names
    count = len(depthwise(device, kind, image, weight, result, windows))
    assert tried == ([] if deterministic else [1, count + 1])
    other = {"image": np.ascontiguousarray(image), "weight": weight, "result": np.ascontiguousarray(result)}
    launch = convolutions.launch(kind, other, windows)
    assert launch is not None
    launch()
    assert ran == ["cuDNN"]

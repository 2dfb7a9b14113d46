"""Compiled convolutions and their gradients against NumPy's, which have tests of their own beside sums written out."""

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.convolution.convolve import (
    Conv2D,
    Conv2DBackpropFilter,
    Conv2DBackpropInput,
    Conv3D,
    Conv3DBackpropFilter,
    Conv3DBackpropInput,
)
from mspc.ops.convolution.window import Convolution, ImageOperator, last_order
from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import convolution as convolution_kernel
from mspc.ops.cpu.loops import kernel as loop_kernels
from mspc.ops.cpu.loops import library, program
from mspc.ops.cpu.loops.kernel import Addresses
from tests.ops.cuda.cuda_chains import NumPy

pytestmark = [
    pytest.mark.skipif(not library.compiler(), reason="needs a C++ compiler"),
    pytest.mark.usefixtures("quick_compiler"),
]
FAMILIES: dict[int, tuple[type[Convolution], type[Any], type[Any]]] = {
    2: (Conv2D, Conv2DBackpropInput, Conv2DBackpropFilter), 3: (Conv3D, Conv3DBackpropInput, Conv3DBackpropFilter),
}  # fmt: skip
DRAWS = 40


class Case(NamedTuple):
    """An operator, the shapes of its operands, and that of its result."""

    op: Any
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]

    def types(self, dtype: str) -> list[TensorType]:
        return [TensorType(dtype_of(dtype), shape) for shape in self.shapes]

    def inputs(self) -> list[Any]:
        random = np.random.default_rng(len(self.shapes[0]))
        return [random.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def in_float64(self, inputs: Sequence[Any]) -> Any:
        """NumPy's result of Float64."""
        return self.op.kernel(NumPy())(*(x.astype(np.float64) for x in inputs))


def family(image: tuple[int, ...], out: int, sizes: Sequence[int], group: int = 1, **given: Any) -> list[Case]:
    """A convolution of such images, and its two gradients. given: stride, dilation and pad."""
    weight = (out, image[1] // group, *sizes)
    attributes = {"out_channel": out, "kernel_size": tuple(sizes), "pad_mode": "pad", "group": group, **given}
    forward, of_image, of_weight = FAMILIES[len(sizes)]
    op = forward(**attributes)
    result = (image[0], out, *op.counts(image[2:]))
    return [
        Case(op, (image, weight), result),
        Case(of_image(**attributes, input_size=image), (result, weight), image),
        Case(of_weight(**attributes, filter_size=weight), (result, image), weight),
    ]


def last(case: Case) -> Case:
    """The case with channels last."""
    order = last_order(len(case.result))
    turned = [tuple(shape[d] for d in order) for shape in (*case.shapes, case.result)]
    op: ImageOperator = case.op
    return Case(op.with_channels_last(), tuple(turned[:-1]), turned[-1])


def loops(cases: Sequence[Case], dtype: str = "Float32", all_of_them: bool = True) -> dict[int, Any]:
    """all_of_them: those are compiled, too, that are faster in BLAS."""
    results = [[TensorType(dtype_of(dtype), case.result)] for case in cases]
    calls = {i: (case.op, case.types(dtype), results[i]) for i, case in enumerate(cases)}
    with pytest.MonkeyPatch.context() as patch:
        if all_of_them:
            patch.setattr(convolution_kernel, "better_in_blas", lambda *_: False)
        return program.kernels(NumPy(), calls).loops  # type: ignore[arg-type]


def check(cases: Sequence[Case]) -> None:
    """Every case is a loop, and equals NumPy's Float64 but for the rounding of Float32."""
    made = loops(cases)
    assert sorted(made) == list(range(len(cases)))
    for number, case in enumerate(cases):
        inputs = case.inputs()
        out = np.full(case.result, np.nan, np.float32)  # every element has to be written
        assert made[number](*inputs, out=out) is out
        wanted = case.in_float64(inputs)
        np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-6 * np.abs(wanted).max(), err_msg=str(case))


NAMED: dict[str, list[Case]] = {
    "several chunks of rows": family((2, 20, 60, 33), 18, (3, 3), pad=1),
    "several chunks of rows with strides": family((1, 70, 61, 30), 5, (5, 3), stride=(3, 2), pad=(2, 1, 0, 1)),
    "images together": family((11, 33, 2, 3), 40, (3, 3), pad=1),
    "sums of several rounds": family((3, 64, 9, 9), 17, (3, 3), pad=1),
    "places that nothing looks at": family((2, 3, 11, 10), 4, (2, 1), stride=(4, 3)),
    "a window of one place, with strides": family((3, 24, 8, 7), 20, (1, 1), stride=2),
    "strides along lines alone, and a last tile that is not full": family((76, 3, 7, 5), 20, (1, 1), stride=(1, 2)),
    "a window of one place, padded": family((2, 5, 4, 4), 3, (1, 1), pad=1),
    "padding wider than the window": family((2, 2, 3, 3), 3, (2, 3), pad=(5, 4, 7, 7)),
    "padding wider than a vector": family((1, 2, 3, 40), 20, (2, 3), pad=(0, 0, 19, 21)),
    "places left out": family((2, 2, 9, 9), 3, (3, 2), pad=(-1, 0, 0, -2)),
    "depthwise": family((3, 35, 10, 9), 35, (3, 3), 35, stride=2, pad=1),
    "depthwise, long lines": family((2, 35, 6, 37), 35, (3, 3), 35, pad=1),
    "depthwise, two of each": family((2, 17, 7, 8), 34, (3, 5), 17, pad=(1, 1, 2, 2)),
    "groups that are lanes": family((2, 64, 6, 6), 96, (3, 3), 32, pad=1),
    "groups that are not": family((2, 12, 6, 6), 48, (3, 3), 3, dilation=2, pad=2),
    "one position": family((2, 3, 1, 1), 2, (3, 3), pad=1),
    "three dimensions": family((2, 6, 5, 9, 8), 9, (3, 2, 3), 3, stride=(2, 1, 2), pad=(1, 1, 0, 1, 2, 0)),
    "three dimensions, chunks": family((1, 30, 12, 13, 14), 20, (3, 3, 3), pad=1),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_shapes_equal_numpy(name: str) -> None:
    check([*NAMED[name], *map(last, NAMED[name])])


def drawn(random: np.random.Generator) -> list[Case]:
    """A family of any sizes that fit each other."""
    dims = int(random.choice([2, 2, 3]))

    def some(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(map(int, random.integers(low, high, count)))

    group = int(random.choice([1, 1, 2, 17]))
    inner, outer = some(1, 40 if group == 1 else 6, 2)
    sizes, dilations = some(1, 5, dims), some(1, 3, dims)
    beyond = zip(some(1, 18 - 4 * dims, dims), sizes, dilations, strict=True)
    lengths = tuple(n + (size - 1) * by for n, size, by in beyond)
    image = (some(1, 9, 1)[0], group * inner, *lengths)
    given = {"stride": some(1, 4, dims), "dilation": dilations, "pad": some(0, 3, 2 * dims)}
    return family(image, group * outer, sizes, group, **given)


def test_drawn_shapes_equal_numpy() -> None:
    random = np.random.default_rng(7)
    families = [drawn(random) for _ in range(DRAWS)]
    cases = [case for each in families for case in each]
    check(cases)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    cases = [case for name in ("several chunks of rows", "images together", "depthwise") for case in NAMED[name]]
    found: list[list[Any]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        made = loops(cases)
        found.append([made[i](*case.inputs()) for i, case in enumerate(cases)])
    for one in found[1:]:
        for array, other in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("operand", [0, 1])
def test_what_is_not_finite_shows_where_it_does_in_numpy(operand: int, value: float) -> None:
    cases = [*family((2, 3, 6, 5), 4, (3, 3), pad=1), *family((2, 18, 6, 5), 18, (3, 3), 18, stride=2, pad=1)]
    made = loops(cases)
    for number, case in enumerate(cases):
        inputs = case.inputs()
        inputs[operand].reshape(-1)[7] = value
        with np.errstate(invalid="ignore"):
            found, wanted = made[number](*inputs), case.op.kernel(NumPy())(*inputs)
        assert not np.isfinite(wanted).all()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=str(case))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted), err_msg=str(case))


def test_a_weight_that_is_not_finite_is_forgotten_at_the_next_call() -> None:
    (case,) = family((2, 3, 6, 5), 4, (3, 3), pad=1)[1:2]
    (kernel,) = loops([case]).values()
    inputs = case.inputs()
    wanted = kernel(*inputs)
    with np.errstate(invalid="ignore"):
        kernel(inputs[0], np.full_like(inputs[1], np.inf))
    np.testing.assert_array_equal(kernel(*inputs), wanted)


def test_operands_and_results_may_lie_anywhere() -> None:
    cases = family((2, 6, 8, 9), 5, (3, 3), pad=1)
    for number, kernel in loops(cases).items():
        inputs = cases[number].inputs()
        wanted = kernel(*inputs)
        turned = [np.ascontiguousarray(x.T).T for x in inputs]
        apart = np.zeros((*wanted.shape[:-1], 2 * wanted.shape[-1]), np.float32)[..., ::2]
        assert kernel(*turned, out=apart) is apart
        np.testing.assert_array_equal(apart, wanted)


def test_packed_operands_stay_alive_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = family((2, 6, 8, 9), 5, (3, 3), pad=1)[2:]
    result = TensorType(dtype_of("Float32"), case.result)
    made = convolution_kernel.compiled_convolution(case.op, case.types("Float32"), result)
    assert made is not None
    monkeypatch.setattr(convolution_kernel, "scratch", lambda _, shape, dtype: np.empty(shape, dtype))
    put = Addresses.put
    packed: list[weakref.ref[Any]] = []

    def noted(addresses: Addresses, place: int, array: Any) -> None:
        put(addresses, place, array)
        if place == 3:
            packed.append(weakref.ref(array))

    monkeypatch.setattr(Addresses, "put", noted)
    alive: list[bool] = []
    kernel = convolution_kernel.convolution_kernel(
        made, result, lambda *_: alive.append(packed[-1]() is not None), case.op.kernel(NumPy())
    )
    kernel(*case.inputs())
    assert alive == [True, True]


def test_what_stays_with_numpy() -> None:
    cases = family((2, 6, 8, 9), 5, (3, 3), pad=1)
    assert loops(cases, "Float64") == loops(cases, "Float16") == {}
    none = Case(cases[0].op, ((0, 6, 8, 9), cases[0].shapes[1]), (0, 5, 8, 9))
    assert loops([none]) == {}


@pytest.mark.parametrize(
    ("cases", "compiled"),
    [
        (family((2, 6, 16, 17), 5, (3, 3), pad=1), [0, 1, 2]),
        (family((2, 6, 16, 17), 5, (1, 1), stride=2), [2]),
        (family((16, 6, 4, 4), 5, (3, 3), pad=1), [2]),
        (family((16, 6, 4, 4), 6, (3, 3), 2, pad=1), [0, 1, 2]),
        (family((2, 6, 16, 17), 12, (1, 1), 6), [0, 1, 2]),
    ],
    ids=["many positions", "one place", "few positions", "few positions, groups", "one place, groups"],
)
def test_what_needs_no_columns_or_has_few_positions_stays_with_blas(cases: list[Case], compiled: list[int]) -> None:
    assert sorted(loops(cases, all_of_them=False)) == compiled


def test_two_functions_serve_all_convolutions(compiled: list[int]) -> None:
    loops([case for cases in NAMED.values() for case in cases])
    assert compiled == [2]

"""Every operator's samples with numbers that sharding gets wrong first: NaN, infinities, ties, zeros of both signs,
places that there are not. Ranks together have what one device has, and refuse what it refuses."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, float16, nn, ops
from mspc.mindspore_api.common.api import _cell_graph_executor
from mspc.ops.convolution.resizing import (
    AdaptiveAvgPool2D,
    ResizeBicubic,
    ResizeBilinear,
    ResizeNearestNeighbor,
    ResizeTrilinear,
)
from tests.graphs import MspcError, Op, TensorType, element_types
from tests.grouped import grouped
from tests.operators import AdaptiveMaxPool2D, Cdist, MaxPoolWithArgmaxV2, Svd
from tests.ops.ranks import on_ranks
from tests.ops.simulate import (
    BACKEND,
    arrays_of,
    check_sharded,
    layouts_of,
    operator_of,
    results_of,
    spread,
    strategies,
    types_of,
)
from tests.ops.test_ops import CASES
from tests.shares import is_taken

RANKS, STRATEGIES = 4, 3
REFUSED = (IndexError, ValueError, MspcError)
FLOATS = {
    "NaN": ([np.nan], 0.1),
    "infinities": ([np.inf, -np.inf], 0.15),
    "ties": ([-1.0, 0.0, 1.0], 1.0),
    "zeros": ([0.0, -0.0], 0.5),
}
"""By kind: numbers, and the share of the elements that they take."""
OTHERS = len(FLOATS) - 1
"""Kinds beside NaN, which alone shows most: it spreads to all that is computed of it."""

FINITE = ("CumulativeLogsumexpGrad", "LinearRecurrence", "LinearRecurrenceGrad")
"""Recurrences: an infinite coefficient makes infinities of one device NaN, as slices multiply coefficients first."""


def hard_inputs(name: str, index: int) -> Iterator[tuple[str, list[Any]]]:
    """(what is hard, operands) for a sample: in all floating-point operands and in each alone, and for operands that
    name places those that are counted from the end and those that there are not. Together the operands of an operator's
    first sample have all kinds, those of the others NaN and a share of the other kinds. Alone every operand has NaN and
    a share of the other kinds, which are others from operand to operand and from sample to sample. The others than the
    first have a half of the kinds of places, by turns."""
    op, spec = operator_of(name, index)
    types = types_of(spec)
    inputs = arrays_of(name, spec, types)
    random = np.random.default_rng([len(name), index])

    def changed(x: Any, values: Sequence[Any], share: float) -> Any:
        chosen = random.random(x.shape) < share
        if x.size and not chosen.any():
            chosen.flat[0] = True
        return np.where(chosen, random.choice(np.asarray(values, x.dtype), x.shape), x)

    floats = [i for i, t in enumerate(types) if t.dtype.is_float or t.dtype.is_complex]
    for number, (kind, (values, share)) in enumerate(FLOATS.items()):
        together = [floats] if floats and (not index or kind == "NaN" or is_taken(number + index, OTHERS)) else []
        alone = [[i] for place, i in enumerate(floats) if kind == "NaN" or is_taken(number + place + index, OTHERS)]
        for among in together + (alone if len(floats) > 1 else []):
            yield kind, [changed(x, values, share) if i in among else x for i, x in enumerate(inputs)]
    for i, limit in op.index_limits(*types).items():
        if types[i].dtype.kind != "i":
            continue
        for number, (kind, places, share) in enumerate((
            ("counted from the end", np.arange(-limit, 0), 0.5),
            ("one past the end", [limit], 0.0),
            ("far out", [3 * limit], 0.3),
            ("before the first", [-limit - 1], 0.3),
        )):
            if index and not is_taken(number + index, 2):
                continue
            yield kind, [changed(x, places, share) if k == i else x for k, x in enumerate(inputs)]


@grouped([case for place, case in enumerate(CASES) if is_taken(place, 2)])
def test_ranks_have_what_one_device_has(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec)
    for kind, inputs in hard_inputs(name, index):
        if name in FINITE and kind == "infinities":
            continue
        with np.errstate(all="ignore"):
            try:
                op.kernel(BACKEND)(*[np.array(x) for x in inputs])
            except REFUSED:
                assert accepted(op, types, inputs) == [], f"{op}: {kind}: one device refuses it"
            else:
                try:
                    check_sharded(op, inputs, types, RANKS, STRATEGIES)
                except AssertionError as error:
                    error.add_note(f"with {kind}")
                    raise


def accepted(op: Op, types: Sequence[TensorType], inputs: Sequence[Any]) -> list[Sequence[int]]:
    """Strategies under which no rank refuses the operands."""
    rule, out_types = op.parsed_rule(*types), element_types(op.infer(*types))
    taken: list[Sequence[int]] = []
    for cuts, backwards in spread(list(itertools.product(strategies(rule, RANKS), (False, True))), STRATEGIES):
        ins, outs = layouts_of(rule, cuts, RANKS, backwards)
        try:
            on_ranks(op, RANKS, types, ins, out_types, outs, inputs)
        except REFUSED:
            continue
        taken.append(cuts)
    return taken


def test_every_operand_has_every_kind_alone_in_some_sample() -> None:
    """In the samples of a product it is so of both operands, and in each NaN is alone in both. Both together have every
    kind in the first sample, and in one of the others."""
    seen, later = set[tuple[str, int]](), set[str]()
    for index in range(OTHERS + 1):
        spec = operator_of("MatMul", index)[1]
        usual = arrays_of("MatMul", spec, types_of(spec))
        changed = [
            (kind, [i for i, x in enumerate(inputs) if not np.array_equal(x, usual[i])])
            for kind, inputs in hard_inputs("MatMul", index)
        ]
        assert [changed.count(("NaN", [i])) for i in range(len(usual))] == [1, 1]
        together = {kind for kind, at in changed if len(at) == len(usual)}
        assert together == FLOATS.keys() if index == 0 else "NaN" in together
        later |= together if index else set()
        seen |= {(kind, at[0]) for kind, at in changed if len(at) == 1}
    assert seen == {(kind, i) for kind in FLOATS for i in (0, 1)}
    assert later == FLOATS.keys()


@pytest.mark.parametrize("name", ["TensorScatterAdd", "ScatterAdd", "GatherNd"])
def test_places_that_there_are_not_are_among_the_cases(name: str) -> None:
    kinds = {kind for kind, _ in hard_inputs(name, 0)}
    assert {"NaN", "counted from the end", "one past the end", "before the first"} <= kinds


MATRICES = np.random.default_rng(2).standard_normal((4, 3, 3)).astype(np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("op", [Svd(), Svd(compute_uv=False)], ids=str)
def test_other_matrices_stay_as_they_are(op: Op, bad: float) -> None:
    spoilt = MATRICES.copy()
    spoilt[1, 0, 2] = bad
    with np.errstate(all="ignore"):
        for found, expected in zip(results_of(op, [spoilt]), results_of(op, [MATRICES]), strict=True):
            if found.shape[:1] != (4,):
                continue
            np.testing.assert_array_equal(np.delete(found, 1, 0), np.delete(expected, 1, 0))
            assert not np.issubdtype(found.dtype, np.inexact) or np.isnan(found[1]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "op",
    [
        ResizeNearestNeighbor((7, 4)),
        ResizeBilinear((3, 9), half_pixel_centers=True),
        ResizeBicubic(size=(9, 3)),
        ops.ResizeNearestNeighborGrad(size=(4, 6), input_size=(2, 3, 8, 3)),
        AdaptiveAvgPool2D((3, 2)),
        ResizeTrilinear((3, 5, 4)),
    ],
    ids=str,
)
def test_images_of_other_sizes(op: Op, bad: float) -> None:
    """A place of the result is not finite if and only if it changes with the place of the image that is not."""
    x = np.random.default_rng(0).standard_normal((2, 3, *[4, 6, 5][: getattr(op, "dims", 2)]))
    place = (1, 2, *[1] * (x.ndim - 2))
    larger, spoilt = x.copy(), x.copy()
    larger[place] += 100
    spoilt[place] = bad
    with np.errstate(all="ignore"):
        plain, changed, found = map(op.kernel(BACKEND), (x, larger, spoilt))
    assert np.array_equal(np.isfinite(found), np.abs(plain - changed) < 1e-9)
    np.testing.assert_allclose(found[np.isfinite(found)], plain[np.isfinite(found)], rtol=1e-12)


def test_a_grid_outside_of_the_image_reads_nothing() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    x[0, 0, 0, 0] = np.nan
    found = ops.grid_sample(Tensor(x), Tensor(np.full((1, 1, 2, 2), 3, np.float32)))
    assert not found.asnumpy().any()


def test_a_difference_that_is_nan_is_not_counted() -> None:
    x = np.array([[np.nan, 1.0, np.inf], [0.5, 1.0, 2.0]])
    (found,) = results_of(Cdist(p=0.0), [x, np.array([[0.0, 2.0, 2.0]])])
    np.testing.assert_array_equal(found, [[np.nan], [2.0]])


@pytest.mark.parametrize("op", [AdaptiveMaxPool2D(output_size=1), MaxPoolWithArgmaxV2(kernel_size=2)], ids=str)
def test_the_last_nan_of_a_window_is_its_greatest_value(op: Op) -> None:
    value, place = op.kernel(BACKEND)(np.array([[[[np.nan, 1.0], [np.nan, 5.0]]]]))
    assert np.isnan(value).all()
    assert place.item() == 2


def test_losses_with_margins_skip_nan() -> None:
    x = Tensor(np.array([[0.2, np.nan, 0.5, 1.0]], np.float32))
    for loss, target in ((ops.multi_margin_loss, [0]), (ops.multilabel_margin_loss, [[0, -1, 1, 1]])):
        assert loss(x, Tensor(target)).asnumpy() == pytest.approx((1.3 + 1.8) / 4)


def test_short_transforms_of_infinity_have_no_imaginary_part() -> None:
    found = ops.stft(Tensor(np.array([1.0, np.inf, 2.0, 3.0], np.float32)), 4, center=False).asnumpy()
    assert np.isinf(found[0, 0, 0])
    assert found[0, 0, 1] == 0


@pytest.mark.parametrize("x", [1e-300, 1e-9, 0.1, 0.5, 0.93, 0.935, 0.99, -0.3, -0.999])
def test_it_undoes_the_error_function(x: float) -> None:
    y = float(ops.erfinv(Tensor(np.array(x))).asnumpy())
    assert math.erf(y) == pytest.approx(x, rel=1e-14, abs=0)


@pytest.mark.parametrize("rest", [2.0**-10, 2.0**-30, 2.0**-52])
def test_near_1_it_counts_what_is_left(rest: float) -> None:
    up, down = (float(y) for y in ops.erfinv(Tensor(np.array([1 - rest, rest - 1]))).asnumpy())
    assert math.erfc(up) == pytest.approx(rest, rel=1e-13, abs=0)
    assert down == -up


def test_at_the_ends_and_beyond() -> None:
    x = np.array([0.0, 1.0, -1.0, 1.5, -2.0, np.nan, np.inf])
    with np.errstate(all="raise", under="ignore"):
        found = ops.erfinv(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found, [0, np.inf, -np.inf, np.nan, np.nan, np.nan, np.nan])


def test_distributions() -> None:
    for drawn in (ops.randn(4000), ops.standard_normal((4000,))):
        found = drawn.asnumpy()
        assert (abs(found.mean()), abs(found.std() - 1)) < (0.06, 0.06)
        assert abs((found**3).mean()) < 0.25
        assert abs((found**4).mean() - 3) < 0.5
    moved = ops.normal((4000,), 3.0, 0.5).asnumpy()
    assert abs(moved.mean() - 3) < 0.05
    assert abs(moved.std() - 0.5) < 0.05
    even = ops.uniform((4000,), Tensor(-1.0), Tensor(3.0)).asnumpy()
    assert even.min() >= -1
    assert even.max() < 3
    assert abs(even.mean() - 1) < 0.1
    ones = ops.bernoulli(ops.zeros((4000,), float16), 0.3).asnumpy()
    assert ones.dtype == np.float16
    assert set(ones.tolist()) == {0.0, 1.0}
    assert abs(ones.astype(float).mean() - 0.3) < 0.05


def test_shapes_seeds_and_types() -> None:
    class Draws(nn.Cell):
        def construct(self) -> Any:
            return ops.rand(8, seed=3), ops.rand(8, seed=3), ops.rand(8, seed=4)

    assert (ops.rand(2, 3).shape, ops.rand((2, 3)).shape) == ((2, 3), (2, 3))
    assert ops.randn(2, dtype=float16).dtype == float16
    first, again, other = (found.asnumpy() for found in Draws()())
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)

    class Unseeded(nn.Cell):
        def construct(self) -> Any:
            return ops.randn(8), ops.randn(8), ops.rand(8), ops.rand(8)

    found = [part.asnumpy() for part in Unseeded()()]
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[2], found[3])
    with pytest.raises(MspcError, match=r"rand: size\[0\] must be an integer"):
        ops.rand("x")
    with pytest.raises(MspcError, match=r"rand\(\): sizes must be 0 or more"):
        ops.rand(-1)


@pytest.mark.parametrize(("cell", "shape"), [
    (nn.Dropout1d, (64, 32, 3)), (nn.Dropout2d, (64, 32, 2, 3)), (nn.Dropout3d, (64, 32, 2, 1, 3)),
])  # fmt: skip
def test_whole_channels_are_left_out(cell: type[nn.Cell], shape: tuple[int, ...]) -> None:
    drop = cell(0.25)
    x = Tensor(np.ones(shape, np.float32))
    assert np.array_equal(drop(x).asnumpy(), x.asnumpy())
    drop.set_train()
    found = drop(x).asnumpy().reshape(64, 32, -1)
    assert np.array_equal(found.min(axis=2), found.max(axis=2)), "a channel is stored or left out entirely"
    assert {round(float(n), 5) for n in np.unique(found)} == {0.0, round(1 / 0.75, 5)}
    assert abs((found == 0).mean() - 0.25) < 0.05
    alone = drop(Tensor(np.ones(shape[1:], np.float32))).asnumpy().reshape(32, -1)
    assert np.array_equal(alone.min(axis=1), alone.max(axis=1))


class Copy(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((4, 2), np.float32)), "w")
        self.copy = ops.InplaceCopy()

    def construct(self, x: Any) -> Any:
        return self.copy(self.w, x) * 2.0


def test_a_copy_changes_the_parameter() -> None:
    net = Copy()
    out = net(Tensor(np.array([3.0, 5.0], np.float32)))
    assert out.asnumpy().tolist() == [[6.0, 10.0]] * 4
    assert net.w.asnumpy().tolist() == [[3.0, 5.0]] * 4


@pytest.mark.parametrize("shape", [(3,), (1, 4, 2), (8, 2)])
def test_what_does_not_fit_is_not_copied(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="InplaceCopy"):
        _cell_graph_executor.compile(Copy(), Tensor(np.ones(shape, np.float32)))

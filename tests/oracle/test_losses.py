"""Losses against PyTorch: classes that are ignored or weighted, several dimensions, reductions, probabilities at the
ends of their range."""

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch
from tests.shares import crossed  # noqa: E402  # as above

F = torch.nn.functional
SHAPES = [(6, 5), (5,), (4, 5, 3), (2, 5, 3, 4), (3, 1)]
REDUCTIONS = ["mean", "sum", "none"]
WAYS = [(-100, 0.0, False), (0, 0.2, True), (2, 0.0, True), (2, 0.2, False)]
"""(ignore_index, label_smoothing, whether classes are weighted)"""


def classes(shape: tuple[int, ...], ignored: int | None = None) -> np.ndarray:
    axis = min(1, len(shape) - 1)
    rows = (*shape[:axis], *shape[axis + 1 :])
    drawn = np.random.default_rng(len(shape)).integers(0, shape[axis], rows)
    if ignored is not None and drawn.ndim:
        drawn.reshape(-1)[::3] = ignored
    return np.asarray(drawn, np.int64)


@pytest.mark.parametrize(("shape", "reduction", "way"), crossed(SHAPES, REDUCTIONS, WAYS))
def test_classes(shape: tuple[int, ...], reduction: str, way: tuple[int, float, bool]) -> None:
    ignored, smoothing, weighted = way
    x, weight = floats(1, *shape), floats(2, shape[min(1, len(shape) - 1)], low=0.5)
    target = classes(shape, ignored)
    options: dict[str, Any] = {"ignore_index": ignored, "reduction": reduction}
    mine, theirs = (Tensor(weight), torch.tensor(weight)) if weighted else (None, None)
    with np.errstate(all="ignore"):
        same(lambda a, t: ops.cross_entropy(a, t, mine, label_smoothing=smoothing, **options),
             lambda a, t: F.cross_entropy(a, t, theirs, label_smoothing=smoothing, **options), [x, target])  # fmt: skip
        same(lambda a, t: ops.nll_loss(a, t, mine, **options), lambda a, t: F.nll_loss(a, t, theirs, **options),
             [x, target])  # fmt: skip


def test_everything_ignored_is_no_number() -> None:
    x, target = floats(1, 4, 3), np.full(4, 1)
    with np.errstate(all="ignore"):
        near(ops.cross_entropy(Tensor(x), Tensor(target), ignore_index=1).asnumpy(), np.nan)


def test_an_infinity_of_another_class_does_no_harm() -> None:
    x = floats(1, 4, 3)
    x[:, 2] = -np.inf
    same(ops.cross_entropy, F.cross_entropy, [x, np.array([0, 1, -100, 1])])


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize(
    ("reduction", "smoothing", "weighted"),
    [("mean", 0.0, False), ("mean", 0.3, True), ("sum", 0.0, True), ("none", 0.3, False)],
)
def test_probabilities(shape: tuple[int, ...], reduction: str, smoothing: float, weighted: bool) -> None:
    x, target = floats(1, *shape), floats(2, *shape, low=0.0, high=1.0)
    weight = floats(3, shape[min(1, len(shape) - 1)], low=0.5)
    mine, theirs = (Tensor(weight), torch.tensor(weight)) if weighted else (None, None)
    same(lambda a, t: ops.cross_entropy(a, t, mine, -100, reduction, smoothing),
         lambda a, t: F.cross_entropy(a, t, theirs, reduction=reduction, label_smoothing=smoothing),
         [x, target])  # fmt: skip


def test_cells_of_classes() -> None:
    x, target, weight = floats(1, 4, 5, 3, dtype=np.float32), classes((4, 5, 3), 2), floats(2, 5, low=0.5)
    weight = weight.astype(np.float32)
    for mine, theirs in (
        (nn.CrossEntropyLoss(Tensor(weight), 2, "mean", 0.1), torch.nn.CrossEntropyLoss(torch.tensor(weight), ignore_index=2, label_smoothing=0.1)),  # noqa: E501
        (nn.NLLLoss(Tensor(weight), 2), torch.nn.NLLLoss(torch.tensor(weight), ignore_index=2)),
        (mint.nn.CrossEntropyLoss(Tensor(weight), 2, "sum"), torch.nn.CrossEntropyLoss(torch.tensor(weight), ignore_index=2, reduction="sum")),  # noqa: E501
        (mint.nn.NLLLoss(None, 2), torch.nn.NLLLoss(ignore_index=2)),
    ):  # fmt: skip
        same(mine, theirs, [x, target])
    same(mint.nn.functional.cross_entropy, F.cross_entropy, [x, classes((4, 5, 3))])
    same(mint.nn.functional.nll_loss, F.nll_loss, [x, classes((4, 5, 3))])


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_softmax_cross_entropy_with_logits(sparse: bool, reduction: str) -> None:
    x = floats(1, 6, 5)
    target = classes((6, 5)) if sparse else floats(2, 6, 5, low=0.0)
    target = target if sparse else target / target.sum(1, keepdims=True)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse, reduction)
    same(loss, lambda a, t: F.cross_entropy(a, t, reduction=reduction), [x, target], grads=[0])


def test_half_precision_counts_beyond_what_it_holds() -> None:
    x = floats(1, 70000, 2, dtype=np.float16)
    target = classes((70000, 2))
    expected = F.cross_entropy(torch.tensor(x, dtype=torch.float32), torch.tensor(target))
    near(ops.cross_entropy(Tensor(x), Tensor(target)).asnumpy(), expected.numpy().astype(np.float16))


ELEMENTS: list[tuple[str, Any, Any, list[tuple[float, float]]]] = [
    ("mse_loss", ops.mse_loss, F.mse_loss, [(-3, 3), (-3, 3)]),
    ("l1_loss", ops.l1_loss, F.l1_loss, [(-3, 3), (-3, 3)]),
    ("smooth_l1_loss", lambda a, b, reduction: ops.smooth_l1_loss(a, b, 0.7, reduction),
     lambda a, b, reduction: F.smooth_l1_loss(a, b, reduction=reduction, beta=0.7), [(-1, 1), (-1, 1)]),
    ("smooth_l1_loss without a middle", lambda a, b, reduction: ops.smooth_l1_loss(a, b, 0.0, reduction),
     lambda a, b, reduction: F.smooth_l1_loss(a, b, reduction=reduction, beta=0.0), [(-1, 1), (-1, 1)]),
    ("SmoothL1Loss", lambda a, b, reduction: ops.SmoothL1Loss(0.5, reduction)(a, b),
     lambda a, b, reduction: F.smooth_l1_loss(a, b, reduction=reduction, beta=0.5), [(-1, 1), (-1, 1)]),
    ("nn.SmoothL1Loss", lambda a, b, reduction: nn.SmoothL1Loss(0.5, reduction)(a, b),
     lambda a, b, reduction: F.smooth_l1_loss(a, b, reduction=reduction, beta=0.5), [(-1, 1), (-1, 1)]),
    ("huber_loss", lambda a, b, reduction: ops.huber_loss(a, b, reduction, 0.6),
     lambda a, b, reduction: F.huber_loss(a, b, reduction=reduction, delta=0.6), [(-1, 1), (-1, 1)]),
    ("binary_cross_entropy_with_logits",
     lambda a, b, reduction: ops.binary_cross_entropy_with_logits(a, b, reduction=reduction),
     F.binary_cross_entropy_with_logits, [(-30, 30), (0, 1)]),
    ("mint binary_cross_entropy_with_logits", mint.nn.functional.binary_cross_entropy_with_logits,
     F.binary_cross_entropy_with_logits, [(-3, 3), (0, 1)]),
]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("mine", "theirs", "ranges"), [e[1:] for e in ELEMENTS], ids=[e[0] for e in ELEMENTS])
def test_elements(mine: Any, theirs: Any, ranges: Any, reduction: str) -> None:
    for shape in ((4, 5), (), (1,), (0, 3)):
        if 0 in shape and reduction == "mean":
            continue
        arrays = [floats(i, *shape, low=low, high=high) for i, (low, high) in enumerate(ranges)]
        same(lambda *a: mine(*a, reduction=reduction), lambda *a: theirs(*a, reduction=reduction), arrays)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_probabilities_of_two(reduction: str) -> None:
    x = floats(1, 4, 5, low=0.0, high=1.0)
    x[0, :2], y, weight = [0.0, 1.0], floats(2, 4, 5, low=0.0, high=1.0), floats(3, 5, low=0.5)
    same(lambda a, b: ops.binary_cross_entropy(a, b, reduction=reduction),
         lambda a, b: F.binary_cross_entropy(a, b, reduction=reduction), [x, y], grads=[0],
         tolerance=1e-8)  # fmt: skip  # PyTorch's least denominator is a Float32
    same(nn.BCELoss(Tensor(weight), reduction), torch.nn.BCELoss(torch.tensor(weight), reduction=reduction), [x, y],
         grads=[0], tolerance=1e-8)  # fmt: skip
    positive = floats(4, 5, low=0.5)
    same(nn.BCEWithLogitsLoss(reduction, Tensor(weight), Tensor(positive)),
         torch.nn.BCEWithLogitsLoss(torch.tensor(weight), reduction=reduction, pos_weight=torch.tensor(positive)),
         [floats(5, 4, 5, low=-40, high=40), y])  # fmt: skip


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
def test_divergence(reduction: str) -> None:
    x, y = floats(1, 4, 5), floats(2, 4, 5, low=0.0, high=1.0)
    y[0, 0] = 0.0
    for mine in (nn.KLDivLoss(reduction), ops.KLDivLoss(reduction)):
        same(mine, torch.nn.KLDivLoss(reduction=reduction), [x, y], grads=[0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_pairs(reduction: str) -> None:
    x, y, z = (floats(i, 6, 5) for i in (1, 2, 3))
    sign = np.array([1, -1, -1, 1, 1, -1])
    kinds = {"reduction": reduction}
    same(nn.MarginRankingLoss(0.3, reduction), torch.nn.MarginRankingLoss(0.3, **kinds), [x[:, 0], y[:, 0], sign])
    same(lambda a, b, t: ops.cosine_embedding_loss(a, b, t, 0.1, reduction),
         torch.nn.CosineEmbeddingLoss(0.1, **kinds), [x, y, sign])  # fmt: skip
    same(lambda a, t: ops.soft_margin_loss(a, t, reduction), torch.nn.SoftMarginLoss(**kinds),
         [x[:, 0], sign.astype(float)], grads=[0])  # fmt: skip
    same(lambda a, t: ops.hinge_embedding_loss(a, t, 0.7, reduction), torch.nn.HingeEmbeddingLoss(0.7, **kinds),
         [x[:, 0], sign])  # fmt: skip
    for p, swap in ((2, False), (1, True), (3, False)):
        same(lambda *rows, p=p, swap=swap: ops.triplet_margin_loss(*rows, 1.0, p, 1e-6, swap, reduction),
             torch.nn.TripletMarginLoss(p=p, swap=swap, **kinds), [x, y, z])  # fmt: skip


def test_positions_of_arguments() -> None:
    assert (ops.SmoothL1Loss(0.5, "mean").beta, ops.SmoothL1Loss(0.5, "mean").reduction) == (0.5, "mean")


LOGITS, PLACES = floats(1, 4, 3), np.array([[1], [0], [2], [2]], np.int32)
PICTURE, WEIGHT = np.arange(6).reshape(2, 3) / 6, np.array([1, 2, 0.5])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_margins(reduction: str) -> None:
    classes, weight = np.array([2, 0, 1, 1]), torch.tensor(WEIGHT)
    target = torch.tensor(classes)
    for p in (1, 2):
        same(lambda x, p=p: ops.multi_margin_loss(x, Tensor(classes), p, 2, Tensor(WEIGHT), reduction),
             lambda x, p=p: F.multi_margin_loss(x, target, p, 2, weight, reduction=reduction), [LOGITS])  # fmt: skip
    labels = np.array([[2, 0, -1], [1, -1, 0], [0, 1, 2], [-1, 1, 1]])
    same(lambda x: ops.multilabel_margin_loss(x, Tensor(labels), reduction),
         lambda x: F.multilabel_margin_loss(x, torch.tensor(labels), reduction=reduction), [LOGITS])  # fmt: skip
    same(lambda x: ops.multilabel_margin_loss(x, Tensor(labels[0].astype(np.int32)), reduction),
         lambda x: F.multilabel_margin_loss(x, torch.tensor(labels[0]), reduction=reduction), [LOGITS[0]])  # fmt: skip


def test_numbers_of_mindspore() -> None:
    """MindSpore 2.10 on a CPU."""
    near(nn.DiceLoss()(Tensor(PICTURE), Tensor(np.eye(2, 3))).asnumpy(), np.array(0.62204826), "DiceLoss", 3e-5)


def test_dice() -> None:
    def theirs(a: Any, b: Any) -> Any:
        return 1 - (2 * (a * b).sum() + 1e-5) / ((a * a).sum() + (b * b).sum() + 1e-5)

    same(nn.DiceLoss(), theirs, [PICTURE, np.eye(2, 3)])


@pytest.mark.parametrize("k", [0, 1, 2, 3, -1, 6])
def test_quarters(k: int) -> None:
    x = floats(1, 2, 3, 4)
    for dims in ((0, 1), (2, 1), (0, -1)):
        same(lambda a, d=dims: ops.rot90(a, k, d), lambda a, d=dims: torch.rot90(a, k, d), [x])
    same(ops.fliplr, torch.fliplr, [x])
    same(ops.flipud, torch.flipud, [x])


def test_grids_of_vectors_and_extrema() -> None:
    vectors = [floats(1, 3), floats(2, 4), floats(3, 2)]
    for indexing in ("xy", "ij"):
        for count in (1, 2, 3):
            given = vectors[:count]
            judged = torch.meshgrid(*map(torch.tensor, given), indexing=indexing)
            for mine in (ops.meshgrid(*map(Tensor, given), indexing=indexing),
                         mint.meshgrid(*map(Tensor, given), indexing=indexing)):  # fmt: skip
                assert all(np.array_equal(a.asnumpy(), b.numpy()) for a, b in zip(mine, judged, strict=True))
    x = floats(5, 3, 4)
    for mine, theirs in ((ops.max, torch.max), (ops.min, torch.min)):
        same(lambda a, m=mine: m(a, 1)[0], lambda a, t=theirs: t(a, 1)[0], [x])
        same(lambda a, m=mine: m(a, 0, True)[0], lambda a, t=theirs: t(a, 0, True)[0], [x])
        same(lambda a, m=mine: m(a)[0], theirs, [x])
        near(mine(Tensor(x), 1)[1].asnumpy(), theirs(torch.tensor(x), 1)[1].numpy(), "places")
    near(mint.argmax(Tensor(x), 1).asnumpy(), torch.argmax(torch.tensor(x), 1).numpy(), "places")
    for axis in (None, 0, 1):
        same(lambda a, d=axis: ops.repeat_interleave(a, 3, d), lambda a, d=axis: a.repeat_interleave(3, d), [x])
    same(lambda a: ops.repeat_elements(a, 2, 1), lambda a: a.repeat_interleave(2, 1), [x])
    hot = mint.nn.functional.one_hot(Tensor(np.array([1, 2, 0])), 4)
    near(hot.asnumpy(), F.one_hot(torch.tensor([1, 2, 0]), 4).numpy(), "rows")

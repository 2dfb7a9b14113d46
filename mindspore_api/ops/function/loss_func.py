"""Functions that compute losses."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.ops.function_arguments import (
    check_classes,
    check_labels,
    check_margins,
    check_number,
    check_reduction,
    check_target,
    class_axis,
    class_shape,
    wide,
)

# Distances ----------------------------------------------------------------------------------------


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)^2, reduced by "mean", "sum" or "none"."""
    check_reduction("mse_loss", reduction)
    return _reduced(ops.Square()(input - target), reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target|, reduced by "mean", "sum" or "none"."""
    check_reduction("l1_loss", reduction)
    return _reduced(ops.Abs()(input - target), reduction)


def smooth_l1_loss(input: Any, target: Any, beta: float = 1.0, reduction: str = "none") -> Any:
    """0.5 d^2 / beta if |d| < beta, |d| - 0.5 beta elsewhere, d = input - target."""
    check_reduction("smooth_l1_loss", reduction)
    check_number("smooth_l1_loss", "beta", beta, 0.0)
    if beta == 0:
        return l1_loss(input, target, reduction)
    distance = ops.Abs()(input - target)
    near = ops.Square()(distance) * (0.5 / beta)
    return _reduced(ops.Select()(distance < beta, near, distance - 0.5 * beta), reduction)


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """0.5 d^2 if |d| <= delta, delta (|d| - 0.5 delta) elsewhere, d = input - target."""
    check_reduction("huber_loss", reduction)
    check_number("huber_loss", "delta", delta, 1e-300)
    distance = ops.Abs()(input - target)
    near = ops.Square()(distance) * 0.5
    return _reduced(ops.Select()(distance <= delta, near, (distance - 0.5 * delta) * delta), reduction)


def _reduced(x: Any, reduction: str) -> Any:
    if reduction == "mean":
        return ops.ReduceMean()(x)
    if reduction == "sum":
        return ops.ReduceSum()(x)
    return x


# Classes ------------------------------------------------------------------------------------------


def nll_loss(
    inputs: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Negative log-probability inputs[n, classes, ...] of the target classes [n, ...].

    The mean is weighted by the targets' weights (1 without `weight`); targets equal to ignore_index have weight 0.

    Args:
        weight: of every class. label_smoothing: share of every target distributed evenly over all classes.
    """
    check_reduction("nll_loss", reduction)
    return _class_loss("nll_loss", inputs, target, weight, ignore_index, reduction, label_smoothing)


def _class_loss(
    name: str, inputs: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    axis = class_axis(name, inputs.shape)
    check_target(name, inputs.shape, target.shape, axis)
    check_classes(name, target.dtype, ignore_index)
    check_number(name, "label_smoothing", label_smoothing, 0.0, 1.0 + 1e-12)
    classes = inputs.shape[axis]
    counts = ops.NotEqual()(target, ignore_index)
    hit = ops.OneHot(axis, 0, 0, classes, ignore_index)(target, classes, 1.0, 0.0) > 0.0
    scaled = inputs
    if weight is not None:
        weight = ops.Reshape()(ops.cast(weight, inputs.dtype), class_shape(name, weight.shape, inputs.shape, axis))
        scaled = inputs * weight
    nothing = ops.zeros_like(inputs)
    none = ops.zeros_like(ops.ReduceSum()(inputs, axis))
    losses = ops.Select()(counts, ops.Neg()(ops.ReduceSum()(ops.Select()(hit, scaled, nothing), axis)), none)
    if label_smoothing:
        smooth = ops.Select()(counts, ops.Neg()(ops.ReduceSum()(scaled, axis)), none)
        losses = losses * (1.0 - label_smoothing) + smooth * (label_smoothing / classes)
    if reduction != "mean":
        return _reduced(losses, reduction)
    kind = wide(inputs.dtype)
    shares = ops.cast(counts, kind)
    if weight is not None:
        own = ops.ReduceSum()(ops.Select()(hit, nothing + weight, nothing), axis)
        shares = ops.cast(own, kind) * shares
    total = ops.ReduceSum()(ops.cast(losses, kind)) / ops.ReduceSum()(shares)
    return ops.cast(total, inputs.dtype)


def cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Cross entropy of logits [n, classes, ...] and class numbers [n, ...] or probabilities [n, classes, ...].

    For class numbers it is `nll_loss` of the logarithms of softmax. The mean for probabilities is that over rows;
    ignore_index does not apply to them.
    """
    check_reduction("cross_entropy", reduction)
    axis = class_axis("cross_entropy", input.shape)
    logs = ops.LogSoftmax(axis)(input)
    if not target.dtype.is_float:
        return _class_loss("cross_entropy", logs, target, weight, ignore_index, reduction, label_smoothing)
    check_number("cross_entropy", "label_smoothing", label_smoothing, 0.0, 1.0 + 1e-12)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + label_smoothing / input.shape[axis]
    if weight is not None:
        logs = logs * ops.Reshape()(
            ops.cast(weight, input.dtype), class_shape("cross_entropy", weight.shape, input.shape, axis)
        )
    losses = ops.Neg()(ops.ReduceSum()(logs * target, axis))
    return _reduced(losses, reduction)


# Probabilities ------------------------------------------------------------------------------------


def binary_cross_entropy(logits: Any, labels: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """-(labels log(logits) + (1 - labels) log(1 - logits)) for probabilities `logits`, times weight; logarithms are
    not below -100."""
    check_reduction("binary_cross_entropy", reduction)
    if weight is None:
        return ops.BinaryCrossEntropy(reduction)(logits, labels)
    if weight.shape != logits.shape:
        weight = ops.BroadcastTo(logits.shape)(weight)
    return ops.BinaryCrossEntropy(reduction)(logits, labels, weight)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    """Binary cross entropy of sigmoid(input) and targets, times weight; targets of 1 have the additional weight
    pos_weight."""
    check_reduction("binary_cross_entropy_with_logits", reduction)
    if pos_weight is None:
        losses = ops.SigmoidCrossEntropyWithLogits()(input, target)
    else:
        share = (pos_weight - 1.0) * target + 1.0
        losses = (1.0 - target) * input + share * ops.Softplus()(ops.Neg()(input))
    return _reduced(losses if weight is None else losses * weight, reduction)


def kl_div(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """labels (log(labels) - logits) for probabilities `labels` and logarithms of probabilities `logits`; "batchmean"
    divides their sum by the size of dimension 0."""
    check_reduction("kl_div", reduction, ("mean", "batchmean", "sum", "none"))
    if reduction == "batchmean":
        return ops.KLDivLoss("sum")(logits, labels) / logits.shape[0]
    return ops.KLDivLoss(reduction)(logits, labels)


# Pairs and signs ----------------------------------------------------------------------------------


def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """log(1 + exp(-target * input)) for targets of 1 and -1."""
    check_reduction("soft_margin_loss", reduction)
    return _reduced(ops.Softplus()(ops.Neg()(target * input)), reduction)


def hinge_embedding_loss(inputs: Any, targets: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    """inputs if targets are 1, max(0, margin - inputs) if they are -1, the sum of both elsewhere."""
    check_reduction("hinge_embedding_loss", reduction)
    nothing = ops.zeros_like(inputs)
    far = ops.Select()(ops.NotEqual()(targets, 1), ops.ReLU()(margin - inputs), nothing)
    near = ops.Select()(ops.NotEqual()(targets, -1), inputs, nothing)
    return _reduced(far + near, reduction)


def margin_ranking_loss(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """max(0, -target (input1 - input2) + margin)."""
    check_reduction("margin_ranking_loss", reduction)
    return _reduced(ops.ReLU()(ops.Neg()(target) * (input1 - input2) + margin), reduction)


def cosine_embedding_loss(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """1 - cos(input1, input2) if the target is 1, max(0, cos - margin) if it is -1, along the last dimension."""
    check_reduction("cosine_embedding_loss", reduction)
    check_number("cosine_embedding_loss", "margin", margin, -1.0, 1.0 + 1e-12)
    inner = ops.ReduceSum()(input1 * input2, -1)
    first = ops.ReduceSum()(ops.Square()(input1), -1) + 1e-12
    second = ops.ReduceSum()(ops.Square()(input2), -1) + 1e-12
    cosine = inner / ops.Sqrt()(first * second)
    nothing = ops.zeros_like(cosine)
    near = ops.Select()(ops.Equal()(target, 1), 1.0 - cosine, nothing)
    far = ops.Select()(ops.Equal()(target, -1), ops.ReLU()(cosine - margin), nothing)
    return _reduced(near + far, reduction)


def _hinge(x: Any) -> Any:
    """Return x if it is positive, else 0, for NaN too, which these losses skip."""
    return ops.Select()(ops.Greater()(x, 0.0), x, ops.zeros_like(x))


def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1, weight: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """max(0, margin - own + other)^p, own the number of a row's class, other those of other classes, their sum over the
    number of classes; times the class's weight.

    Args:
        input: [rows, classes], floating point. target: [rows], integers, the classes. p: 1 or 2. weight: [classes].

    Raises ValueError if `p`, `margin` or `reduction` is something else, or shapes do not fit.
    """
    check_reduction("multi_margin_loss", reduction)
    check_number("multi_margin_loss", "margin", margin, -1e300)
    check_margins(input.shape, target.shape, p)
    places = ops.ExpandDims()(target, 1)
    ahead = _hinge(input - ops.GatherD()(input, 1, places) + margin)
    each = ahead if p == 1 else ops.Square()(ahead)
    if weight is not None:
        each = each * ops.ExpandDims()(ops.Gather()(weight, target, 0), 1)
    own = ops.Equal()(ops.arange(input.shape[1]), ops.cast(places, "int64"))
    others = ops.Select()(own, ops.zeros_like(each), each)
    return _reduced(ops.ReduceSum()(others, 1) / input.shape[1], reduction)


def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """max(0, 1 - own + other), own the numbers of a row's classes, other those of all classes that are not the row's,
    their sum over the number of classes.

    Args:
        input: [rows, classes] or [classes], floating point. target: of the same shape, integers: a row's classes, ended
            by the first negative number.

    Raises ValueError if `reduction` is something else, or shapes do not fit.
    """
    check_reduction("multilabel_margin_loss", reduction)
    check_labels(input.shape, target.shape)
    classes = input.shape[-1]
    counts = ops.CumProd()(ops.cast(target >= 0, "int32"), -1) > 0
    places = ops.Select()(counts, ops.cast(target, "int64"), ops.zeros_like(ops.cast(target, "int64")))
    named = ops.LogicalAnd()(
        ops.Equal()(ops.ExpandDims()(places, -1), ops.arange(classes)), ops.ExpandDims()(counts, -1)
    )
    ahead = _hinge(ops.ExpandDims()(input, -2) - ops.ExpandDims()(ops.GatherD()(input, -1, places), -1) + 1.0)
    free = ops.LogicalNot()(ops.ExpandDims()(ops.ReduceAny()(named, -2), -2))
    pairs = ops.LogicalAnd()(ops.ExpandDims()(counts, -1), free)
    each = ops.Select()(pairs, ahead, ops.zeros_like(ahead))
    return _reduced(ops.ReduceSum()(each, (-2, -1)) / classes, reduction)


def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean",
) -> Any:  # fmt: skip
    """max(0, |anchor - positive| - |anchor - negative| + margin), lengths of rows in the p-norm; with `swap` the
    distance of the negative is the smaller of those to the anchor and to the positive."""
    check_reduction("triplet_margin_loss", reduction)
    check_number("triplet_margin_loss", "p", p, 1.0)
    near, far = _length(anchor - positive + eps, p), _length(anchor - negative + eps, p)
    if swap:
        far = ops.Minimum()(far, _length(positive - negative + eps, p))
    return _reduced(ops.ReLU()(near - far + margin), reduction)


def _length(x: Any, p: float) -> Any:
    if p == 2:
        return ops.Sqrt()(ops.ReduceSum()(ops.Square()(x), -1))
    if p == 1:
        return ops.ReduceSum()(ops.Abs()(x), -1)
    return ops.Pow()(ops.ReduceSum()(ops.Pow()(ops.Abs()(x), p), -1), 1.0 / p)

"""The loss of connectionist temporal classification tells how likely all alignments of labels along a longer sequence
are.

Rule: Graves and others, Connectionist Temporal Classification (ICML 2006), with logarithms of probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.control.structural import items
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.tensor.embedding import require_integer

_TYPES = ("Float64", "Int32", "Int32", "Int32")
_NEVER = -float("inf")


class _Ctc(Op, abstract=True):
    """log_probs [time, batch, classes], targets [batch, labels], and how much of both counts, [batch] each.

    blank: the class of no label. zero_infinity: labels that do not fit into the time have loss and gradient 0.
    """

    blank: int = 0
    reduction: str = "none"
    zero_infinity: bool = False

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[2], 2: types[0].shape[0] + 1, 3: types[1].shape[1] + 1}

    def infer(self, *types: Any) -> Any:
        require_float(self.name, types[0])
        for place in (1, 2, 3):
            require_integer(self.name, place, types[place])
        return super().infer(*types)

    def check(self, log_probs: TensorType, targets: TensorType) -> int:
        """How many places there are for labels and blanks."""
        if len(log_probs.shape) != 3 or len(targets.shape) != 2:
            raise MspcError(f"{self.name}: log_probs must be (time, batch, classes) and targets (batch, labels), "
                            f"not {log_probs.shape} and {targets.shape}")  # fmt: skip
        if not 0 <= self.blank < log_probs.shape[2]:
            raise MspcError(f"{self.name}: blank {self.blank} is none of the {log_probs.shape[2]} classes")
        if self.reduction != "none":
            raise MspcError(f"{self.name}: reduction must be 'none', not {self.reduction!r}")
        return 2 * targets.shape[1] + 1

    def places(self, xp: Any, log_probs: Any, targets: Any) -> tuple[Any, Any, Any]:
        """(classes of the places [batch, places], their log_probs [time, batch, places], whether a place may follow the
        one before the last)."""
        classes = log_probs.shape[2]
        found = xp.full((targets.shape[0], 2 * targets.shape[1] + 1), self.blank, xp.int64)
        found[:, 1::2] = xp.clip(targets, 0, classes - 1)
        emitted = xp.take_along_axis(log_probs, xp.broadcast_to(found, (log_probs.shape[0], *found.shape)), axis=2)
        skips = xp.zeros(found.shape, bool)
        skips[:, 2:] = (found[:, 2:] != self.blank) & (found[:, 2:] != found[:, :-2])
        return found, emitted, skips


def _shifted(xp: Any, x: Any, by: int) -> Any:
    """The values of places `by` before, nothing where there is none."""
    found = xp.full_like(x, _NEVER)
    if by < x.shape[1]:
        found[:, by:] = x[:, : x.shape[1] - by]
    return found


def _step(xp: Any, before: Any, skips: Any) -> Any:
    """The sum of probabilities to come from the place itself, the last, and where allowed the one before."""
    over = xp.where(skips, _shifted(xp, before, 2), _NEVER)
    return xp.logaddexp(xp.logaddexp(before, _shifted(xp, before, 1)), over)


class CTCLossV2(_Ctc):
    """(minus the logarithm of the targets' probability [batch], that of all beginnings [batch, time, 2 labels + 1]).

    The gradient is that of the first result, for log_probs as they are: MindSpore's differs by what vanishes behind
    `log_softmax`. The second has logarithms of 0, and none.
    """

    samples = (
        sample((6, 4, 5), (4, 4), (4,), (4,), dtypes=_TYPES, low=3, high=5, zero_infinity=True, gradient=False),
        sample((4, 2, 3), (2, 1), (2,), (2,), dtypes=_TYPES, low=1, high=2, blank=2, gradient=False),
    )

    def rule(self, *types: TensorType) -> str:
        return f"t! n c!, n s!, n, n -> n, n t! p={self.check(*types[:2])}!"

    def bprop(
        self, b: Builder, log_probs: Value, targets: Value, times: Value, lengths: Value, out: Node, dout: Any
    ) -> Sequence[Value | None]:
        if dout[0] is None:
            return (None, None, None, None)
        grad = CTCLossV2Grad(blank=self.blank, reduction=self.reduction, zero_infinity=self.zero_infinity)
        loss, begun = items(b, out, 2)
        return (b.emit(grad, log_probs, targets, times, lengths, dout[0], loss, begun), None, None, None)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (log_probs, targets, times, lengths) = be.xp, inputs
        _, emitted, skips = self.places(xp, log_probs, targets)
        begun = xp.full((targets.shape[0], log_probs.shape[0], emitted.shape[2]), _NEVER, log_probs.dtype)
        begun[:, 0, :2] = emitted[0, :, :2]
        for t in range(1, log_probs.shape[0]):
            begun[:, t] = _step(xp, begun[:, t - 1], skips) + emitted[t]
        rows = xp.arange(targets.shape[0])
        last = begun[rows, xp.maximum(times, 1) - 1]
        ends = 2 * lengths.astype(xp.int64)
        label = xp.where(lengths > 0, last[rows, xp.maximum(ends - 1, 0)], _NEVER)
        loss = -xp.logaddexp(last[rows, ends], label)
        loss = xp.where(times > 0, loss, xp.where(lengths > 0, -_NEVER, 0.0)).astype(log_probs.dtype)
        return (xp.where(xp.isinf(loss), xp.zeros_like(loss), loss) if self.zero_infinity else loss), begun


class CTCLossV2Grad(_Ctc):
    """The gradient of log_probs, given the loss's [batch] and both results of CTCLossV2."""

    bprop = NotDifferentiable("it is a gradient; second derivatives are not there")
    samples = (
        sample((6, 4, 5), (4, 2), (4,), (4,), (4,), (4,), (4, 6, 5), dtypes=(*_TYPES, "Float64", "Float64", "Float64"),
               low=1, high=3, blank=4, gradient=False),
    )  # fmt: skip

    def rule(self, *types: TensorType) -> str:
        if types[6].shape[2:] != (self.check(*types[:2]),):
            raise MspcError(f"{self.name}: input 6 has shape {types[6].shape}, which is not that of these targets")
        return "t! n c!, n s!, n, n, n, n, n t! p! -> t! n c!"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (log_probs, targets, times, lengths, grad, loss, begun) = be.xp, inputs
        classes, emitted, skips = self.places(xp, log_probs, targets)
        place = xp.arange(emitted.shape[2])
        ends = 2 * lengths.astype(xp.int64)[:, None]
        final = xp.where((place == ends) | (place == ends - 1), 0.0, _NEVER).astype(log_probs.dtype)
        may_fail = xp.isinf(begun[xp.arange(len(times)), xp.maximum(times, 1) - 1]).all(axis=1) | (times == 0)
        known = xp.where(may_fail | xp.isinf(loss), 0.0, loss)
        found = xp.zeros_like(log_probs)
        rows = xp.arange(targets.shape[0])
        left = xp.full_like(final, _NEVER)
        for t in range(log_probs.shape[0] - 1, -1, -1):
            coming = xp.flip(left + emitted[t + 1], 1) if t + 1 < log_probs.shape[0] else xp.flip(left, 1)
            after = xp.flip(_back(xp, coming, xp.flip(skips, 1)), 1)
            left = xp.where((times == t + 1)[:, None], final, xp.where((times > t + 1)[:, None], after, _NEVER))
            share = xp.exp(begun[:, t] + left + known[:, None])
            for p in range(emitted.shape[2]):
                found[t, rows, classes[:, p]] -= share[:, p]
        return found * grad[None, :, None]


def _back(xp: Any, after: Any, skips: Any) -> Any:
    """As `_step`, for places in reverse: the place skipped to says whether it may be."""
    over = _shifted(xp, xp.where(skips, after, _NEVER), 2)
    return xp.logaddexp(xp.logaddexp(after, _shifted(xp, after, 1)), over)

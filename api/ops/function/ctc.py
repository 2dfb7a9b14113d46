"""This is the loss of labels that lie somewhere along a longer sequence."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.loss_arguments import check_reduction


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """How unlikely labels are, wherever they lie along a longer sequence: a tuple of (the loss, the logarithms of the
    probabilities of all beginnings [batch, time, 2 labels + 1]).

    Args:
        log_probs: [time, batch, classes], of `log_softmax`. targets: [batch, labels], none of them `blank`.
        input_lengths, target_lengths: how much of both counts, [batch] each; tuples may stand for tensors.
        reduction: the mean is that of the losses over their numbers of labels.
        zero_infinity: losses and gradients of labels that do not fit into their time are 0.
    """
    check_reduction("ctc_loss", reduction)
    times = ops.tuple_to_array(input_lengths) if isinstance(input_lengths, tuple) else input_lengths
    lengths = ops.tuple_to_array(target_lengths) if isinstance(target_lengths, tuple) else target_lengths
    losses, begun = ops.CTCLossV2(blank, "none", zero_infinity)(log_probs, targets, times, lengths)
    if reduction == "mean":
        losses = losses / ops.cast(ops.Maximum()(lengths, 1), losses.dtype)
        return ops.ReduceMean()(losses), begun
    return ops.ReduceSum()(losses) if reduction == "sum" else losses, begun

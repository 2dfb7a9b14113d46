"""Gradients of attention as kernels take them: with the results that were stored, which are rounded.

The gradient of a score is weight * (gradient of the weight - mean), where the mean over keys is that of all weights'
gradients. Kernels take sum(gradient of the result * result) for it (Dao et al., arXiv 2205.14135), which is the same
but for the rounding of the result; of a query whose keys have much the same value nothing else may be left.
"""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from mspc.ops.nn import attention_kernel
from mspc.ops.nn.attention import FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_kernel import by_head

GRADIENTS = (FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad)


@contextlib.contextmanager
def results_as_stored() -> Generator[None]:
    """In this context NumPy's gradients of attention are those of results as they are stored."""
    exact = attention_kernel._score_gradients
    results: list[Any] = []

    def gradients(
        xp: Any, shape: Any, scores: Any, operands: Any, statistics: Any, at: attention_kernel.Place, rows: slice
    ) -> tuple[Any, Any]:
        _, _, v, dout = operands
        kept, ds = exact(xp, shape, scores, operands, statistics, at, rows)
        if not results:
            return kept, ds
        weights, _ = exact(xp, shape, replace(scores, draws=None, keep_mask=None), operands, statistics, at, rows)
        lost = xp.matmul(kept, v[at][:, None].astype(kept.dtype)) - results[-1][at[0], rows]
        return kept, ds + weights * xp.sum(dout[at[0], rows].astype(kept.dtype) * lost, axis=-1, keepdims=True)

    def filling(op: Any, fill: Any) -> Any:
        def filled(self: Any, be: Any, inputs: Sequence[Any], out: Any) -> Any:
            if self.packed:
                return fill(self, be, inputs, out)  # of another that is not
            results.append(by_head(inputs[-1], self.input_layout, self.head_num))
            try:
                return fill(self, be, inputs, out)
            finally:
                results.pop()

        return patch.object(op, "fill", filled)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(attention_kernel, "_score_gradients", gradients))
        for op in GRADIENTS:
            stack.enter_context(filling(op, op.fill))
        yield

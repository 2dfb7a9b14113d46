"""Attentions with masks, addends, windows and dropped weights, for the fused kernels of every element type."""

from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from mspc.ir.types import TensorType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreShiftGrad
from tests.ops.cuda.flash_cases import Case, gradient_of

TYPES = {
    "Float16": np.dtype(np.float16), "BFloat16": np.dtype(ml_dtypes.bfloat16), "Float32": np.dtype(np.float32)
}  # fmt: skip
TOLERANCES = {"Float16": 2e-3, "BFloat16": 1.2e-2, "Float32": 1e-3}
"""Weights are rounded to halves before products, as are results; those of Float32 to TF32 alone."""
EXACT = 1e-5
"""Where products of Float32 are not rounded."""


@dataclass(frozen=True)
class TermCase:
    """An attention; `settings` are further attributes of the operator. shift, mask, key_shift: shapes of these
    operands, (): none. hidden: the number that the shift adds to all keys of the first query, and to the last key of
    all others; or the second addend to all keys of the batch's first member, and to the last key of the others.
    total: the shape to which the shift's gradient is summed, where it is not the shift's own."""

    case: Case
    settings: dict[str, Any] = field(default_factory=dict)
    shift: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    key_shift: tuple[int, ...] = ()
    total: tuple[int, ...] = ()
    hidden: float = 0.0
    dtype: str = "Float16"

    def operator(self) -> FlashAttentionScore:
        shapes = {"real_shift": self.shift, "attn_mask": self.mask, "key_shift": self.key_shift}
        optional = [name for name, shape in shapes.items() if shape]
        return replace(self.case.operator(), optional=tuple(optional), **self.settings)

    def optional(self) -> list[np.ndarray]:
        random = np.random.default_rng(7)
        found: list[np.ndarray] = []
        if self.shift:
            shift = random.standard_normal(self.shift).astype(np.float32)
            if not self.key_shift:
                shift[..., -1] += self.hidden
                shift[..., :1, :] += self.hidden
            found.append(shift)
        if self.mask:
            found.append(random.random(self.mask) < 0.3)
        if self.key_shift:
            key_shift = random.standard_normal(self.key_shift).astype(np.float32)
            key_shift[..., -1] += self.hidden
            key_shift[:1] += self.hidden
            found.append(key_shift)
        return found


DROPPED = {"keep_prob": 0.75, "Seed0": 3, "Seed1": 5}
SLICE = {"shape": (4, 4, 200, 70), "begin": (2, 1, 100, 0)}
"""The shape of weights on several ranks, from which the slice of a rank is drawn."""
TERM_CASES = {
    "one tile": TermCase(Case(64, 64, 64)),
    "tails": TermCase(Case(64, 65, 100, heads=2), dtype="BFloat16"),
    "several tiles": TermCase(Case(64, 150, 200, layout="BNSD")),
    "dropped": TermCase(Case(64, 100, 140, batch=2, heads=2, layout="BSH"), DROPPED),
    "dropped, rows of entire groups": TermCase(Case(64, 90, 144, batch=2, heads=2), DROPPED),
    "dropped, causal": TermCase(Case(64, 140, 140, heads=2, sparse_mode=2), DROPPED, dtype="BFloat16"),
    "dropped, a rank's slice": TermCase(Case(32, 100, 70, batch=2, heads=2, layout="SBH"), DROPPED | SLICE),
    "fewer heads of key": TermCase(Case(64, 70, 65, batch=2, heads=4, key_heads=2), DROPPED),
    "fewer heads of key, causal": TermCase(Case(64, 100, 100, heads=3, key_heads=1, sparse_mode=2)),
    "causal, more queries": TermCase(Case(32, 150, 65, sparse_mode=2)),
    "queries that see no key": TermCase(Case(64, 140, 40, sparse_mode=3)),
    "a window": TermCase(Case(32, 200, 190, sparse_mode=4), {"pre_tokens": 20, "next_tokens": 7}),
    "an addend": TermCase(Case(64, 70, 90, batch=2, heads=2), DROPPED, shift=(2, 2, 70, 90)),
    "an addend of heads, causal": TermCase(Case(64, 80, 80, batch=2, heads=2, sparse_mode=2), shift=(1, 2, 80, 80)),
    "a mask of keys": TermCase(Case(64, 70, 90, batch=2, heads=2), DROPPED, mask=(2, 1, 1, 90)),
    "a mask, an addend and fewer heads": TermCase(
        Case(32, 40, 70, heads=2, key_heads=1), shift=(40, 70), mask=(1, 2, 40, 70)
    ),
    "an addend that hides": TermCase(Case(64, 70, 90), DROPPED, shift=(1, 1, 70, 90), hidden=-1e9),
    "two addends": TermCase(
        Case(64, 70, 90, batch=2, heads=2), DROPPED, shift=(1, 2, 70, 90), key_shift=(2, 1, 1, 90), dtype="BFloat16"
    ),
    "two addends, one of which hides": TermCase(
        Case(64, 70, 90, batch=2, heads=2), shift=(1, 2, 70, 90), key_shift=(2, 1, 1, 90), hidden=-1e9
    ),
    "an addend of keys, and a mask": TermCase(
        Case(32, 70, 90, batch=2, heads=2), mask=(1, 1, 70, 90), key_shift=(2, 2, 1, 90)
    ),
    "an addend of keys that hides": TermCase(
        Case(64, 70, 90, batch=2, heads=2), DROPPED, key_shift=(2, 1, 1, 90), hidden=-1e9
    ),
    "two addends and a mask of keys, causal": TermCase(
        Case(128, 80, 80, batch=2, heads=2, key_heads=1, sparse_mode=2), DROPPED, shift=(80, 80), mask=(2, 1, 1, 80),
        key_shift=(1, 2, 1, 80),
    ),
    "a gradient summed over the batch in parts": TermCase(
        Case(64, 70, 90, batch=5, heads=2), DROPPED, shift=(5, 2, 70, 90), total=(1, 2, 70, 90)
    ),
    "a gradient summed over heads": TermCase(
        Case(64, 40, 50, batch=2, heads=2), shift=(2, 2, 40, 50), key_shift=(1, 50), total=(2, 1, 40, 50)
    ),
    "depth 128": TermCase(Case(128, 65, 100, heads=2, sparse_mode=2), DROPPED),
    "depth 40": TermCase(Case(40, 65, 70, heads=2, layout="BNSD"), DROPPED),
    "depth 80": TermCase(Case(80, 65, 70, heads=1, layout="BNSD")),
    "depth 256": TermCase(Case(256, 33, 40, heads=2, key_heads=1, sparse_mode=2), DROPPED, shift=(1, 2, 33, 40)),
    "depth 200": TermCase(Case(200, 20, 70, layout="BNSD"), mask=(1, 1, 1, 70), dtype="BFloat16"),
    "one query": TermCase(Case(64, 1, 300)),
    "one key": TermCase(Case(128, 3, 1)),
}  # fmt: skip
OF_FLOAT32 = {f"{name}, Float32": replace(case, dtype="Float32") for name, case in TERM_CASES.items()}


class Wide:
    """NumPy, at the step of the emulated device."""

    xp = np
    comm = None
    step = 3


@dataclass
class TermExpected:
    """Operands in a case's type and what NumPy finds for them in Float64: forward (statistics, out), backward (of
    query, key, value, and of the shift where there is one). The backward operands are what NumPy's forward pass gave.
    """

    op: FlashAttentionScore
    inputs: list[np.ndarray]
    operands: list[np.ndarray]
    out: list[np.ndarray]
    grads: list[np.ndarray]
    shift: FlashAttentionScoreShiftGrad | None


def term_expected(case: TermCase) -> TermExpected:
    op, dtype, optional = case.operator(), TYPES[case.dtype], case.optional()
    *inputs, dout = [x.astype(dtype) for x in case.case.inputs()]
    # Beside a number as -1e9 the scores are lost in Float32, and not in Float64.
    wide = [x.astype(np.float32 if case.hidden else np.float64) for x in (*inputs, dout)]
    result: Any = op.run(Wide(), *wide[:3], *optional)  # type: ignore[arg-type]  # the tests' backend
    grads: Any = gradient_of(op).run(Wide(), *wide, *optional, result[0], result[3])  # type: ignore[arg-type]
    found, shift = list(grads), None
    if "real_shift" in op.optional:
        shift = FlashAttentionScoreShiftGrad(**{name: getattr(op, name) for name in ("head_num", *op.omitted)})
        shift = replace(shift, result_shape=case.total)
        found.append(shift.run(Wide(), *wide, *optional, result[0], result[3]))  # type: ignore[arg-type]
    operands = [*inputs, dout, *optional, result[0].astype(np.float32), result[3].astype(dtype)]
    return TermExpected(op, [*inputs, *optional], operands, [result[0], result[3]], found, shift)


def results_of(op: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Results of NaN."""
    inferred: Any = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
    types = (inferred,) if isinstance(inferred, TensorType) else inferred.elements
    return [np.full(t.shape, np.nan, t.dtype.numpy) for t in types]

"""Attentions that the fused kernels of TF32 take, and forms in which their work is divided."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc.ops.cuda.flash_attention import ALL, BackwardTiles, ForwardTiles
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from tests.graphs import FLOAT32, Op, TensorType


@dataclass(frozen=True)
class Case:
    """Attributes of an attention and its sizes; `heads` of query, `key_heads` of key and value."""

    depth: int
    queries: int
    keys: int
    batch: int = 1
    heads: int = 1
    key_heads: int = 1
    layout: str = "BSND"
    sparse_mode: int = 0
    first_query: int = 0
    key_slice: tuple[int, ...] = ()

    def operator(self) -> FlashAttentionScore:
        return FlashAttentionScore(
            self.heads, scale_value=self.depth**-0.5, input_layout=self.layout, sparse_mode=self.sparse_mode,
            first_query=self.first_query, all_queries=self.first_query and 1024, key_slice=self.key_slice,
        )  # fmt: skip

    def inputs(self) -> list[np.ndarray]:
        random = np.random.default_rng(self.depth + self.queries)
        sizes = ((self.heads, self.queries), (self.key_heads, self.keys), (self.key_heads, self.keys))
        return [random.standard_normal(self.shape(*size)).astype(np.float32) for size in (*sizes, sizes[0])]

    def shape(self, heads: int, length: int) -> tuple[int, ...]:
        b, d = self.batch, self.depth
        return {"BSND": (b, length, heads, d), "BNSD": (b, heads, length, d), "BSH": (b, length, heads * d),
                "SBH": (length, b, heads * d)}[self.layout]  # fmt: skip


CASES = {
    "one tile": Case(64, 64, 64),
    "tails": Case(64, 65, 100, heads=2),
    "several tiles": Case(64, 130, 200, layout="BNSD"),
    "batch": Case(64, 33, 70, batch=2, heads=2, layout="BSH"),
    "sequence first": Case(64, 20, 40, batch=2, heads=2, layout="SBH"),
    "causal": Case(64, 128, 128, heads=2, sparse_mode=2),
    "causal, more queries": Case(64, 150, 65, sparse_mode=2),
    "causal from the ends": Case(64, 65, 170, sparse_mode=3),
    "queries that see no key": Case(64, 140, 40, sparse_mode=3),
    "fewer heads of key": Case(64, 70, 65, batch=2, heads=4, key_heads=2),
    "fewer heads of key, causal": Case(64, 100, 100, heads=3, key_heads=1, sparse_mode=2),
    "depth 32": Case(32, 100, 128, heads=2),
    "depth 32, causal": Case(32, 130, 140, heads=2, key_heads=1, sparse_mode=3),
    "depth 128": Case(128, 65, 100, heads=2),
    "depth 128, causal": Case(128, 100, 65, heads=2, key_heads=1, sparse_mode=2),
    "a slice of the keys": Case(64, 140, 130, heads=2, sparse_mode=2, first_query=200, key_slice=(150, 1024)),
    "keys ahead of all queries": Case(64, 70, 130, sparse_mode=2, first_query=512, key_slice=(128, 1024)),
    "keys behind all queries": Case(64, 70, 130, sparse_mode=2, first_query=128, key_slice=(512, 1024)),
    "one query": Case(64, 1, 300),
    "one key": Case(128, 3, 1),
}

FORWARD_TILES = [ForwardTiles(4, 2, 64, 7, 2), ForwardTiles(4, 2, 32, ALL, 2), ForwardTiles(4, 1, 64, ALL, 2),
                 ForwardTiles(4, 1, 32, ALL, 3), ForwardTiles(4, 2, 64, 0, 2)]  # fmt: skip
QUERY_TILES = [BackwardTiles(4, 2, 32, 1, 2), BackwardTiles(4, 2, 32, 0, 2), BackwardTiles(4, 1, 32, 2, 2),
               BackwardTiles(4, 1, 32, 0, 3), BackwardTiles(4, 1, 32, 1, 3)]  # fmt: skip
KEY_TILES = [BackwardTiles(4, 1, 32, 0, 2), BackwardTiles(4, 2, 16, 0, 2), BackwardTiles(4, 1, 32, 2, 2),
             BackwardTiles(4, 1, 16, 0, 3), BackwardTiles(4, 2, 32, 0, 2)]  # fmt: skip
"""For heads of depth 64; the first is the one that is used."""


class Wide:
    """NumPy in Float64."""

    xp = np
    comm = None
    step = 0


def empty(op: Op, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Results of NaN for Float32 operands."""
    inferred: Any = op.infer(*[TensorType(FLOAT32, x.shape) for x in inputs])
    return [np.full(t.shape, np.nan, t.dtype.numpy) for t in inferred.elements]


def gradient_of(op: FlashAttentionScore) -> FlashAttentionScoreGrad:
    return FlashAttentionScoreGrad(**{name: getattr(op, name) for name in ("head_num", *op.omitted)})


@dataclass
class Expected:
    """Operands in Float32 and what NumPy finds in Float64: forward (statistics, out), backward (of query, key, value).

    The backward operands are what NumPy's forward pass gave.
    """

    op: FlashAttentionScore
    inputs: list[np.ndarray]
    operands: list[np.ndarray]
    out: list[np.ndarray]
    grads: list[np.ndarray]


def expected(case: Case) -> Expected:
    op = case.operator()
    *inputs, dout = case.inputs()
    wide = [x.astype(np.float64) for x in (*inputs, dout)]
    result: Any = op.run(Wide(), *wide[:3])  # type: ignore[arg-type]  # the tests' backend
    grads: Any = gradient_of(op).run(Wide(), *wide, result[0], result[3])  # type: ignore[arg-type]
    operands = [*inputs, dout, result[0].astype(np.float32), result[3].astype(np.float32)]
    return Expected(op, inputs, operands, [result[0], result[3]], list(grads))


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root of the mean square of the error over that of the result, or over 0.3 where results cancel; equal infinities
    are no error."""
    error = np.zeros(wanted.shape)
    np.subtract(found, wanted, out=error, where=found != wanted)
    size = np.sqrt(np.mean(np.square(wanted, where=np.isfinite(wanted), out=np.zeros(wanted.shape))))
    return float(np.sqrt(np.mean(np.square(error)))) / max(0.3, float(size))

"""Classes are drawn at random here for losses over a sample of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value, element_types
from mspc.ir.types import FLOAT32, TensorType, TupleType
from mspc.ops.op import ArrayBackend, Op, Placement, sample
from mspc.ops.random.words import key_of, number_of_run, random_words
from mspc.ops.tensor.embedding import require_integer


class UniformCandidateSampler(Op):
    """num_sampled classes of 0 to range_max - 1, each as likely as the others, for true classes x [batch, num_true]: a
    tuple of (classes, how often each true class is expected among them, how often each drawn class is).

    The draw depends on seed and step alone, so that all ranks draw the same. unique: no class twice.
    remove_accidental_hits: true classes come only after all others; x must then be replicated.
    """

    num_true: int = 1
    num_sampled: int = 1
    unique: bool = True
    range_max: int = 1
    seed: int = 0
    remove_accidental_hits: bool = False
    samples = (
        sample((8, 4), dtypes=("Int32",), low=0, high=20, num_true=4, num_sampled=8, range_max=20, gradient=False),
        sample((4, 8), dtypes=("Int64",), low=0, high=6, num_true=8, num_sampled=16, unique=False, range_max=6,
               seed=3, gradient=False),
        sample((2, 2), dtypes=("Int32",), low=0, high=9, num_true=2, num_sampled=4, range_max=9,
               remove_accidental_hits=True, gradient=False),
    )  # fmt: skip

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.range_max}

    @property
    def draws(self) -> bool:
        return True

    def rule(self, x: TensorType) -> str:
        if len(x.shape) != 2 or x.shape[1] != self.num_true:
            raise MspcError(f"{self.name}: input 0 has shape {x.shape}, not (batch, num_true {self.num_true})")
        if not 1 <= self.num_sampled or self.range_max < 1:
            numbers = f"num_sampled {self.num_sampled} and range_max {self.range_max}"
            raise MspcError(f"{self.name}: {numbers} are at least 1")
        if self.unique and self.num_sampled > self.range_max:
            raise MspcError(f"{self.name}: there are no {self.num_sampled} different classes below {self.range_max}")
        rows = "b! t!" if self.remove_accidental_hits else "b t"
        return f"{rows} -> s={self.num_sampled}!, {rows}, s!"

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 0, types[0])
        sampled, expected, each = element_types(inferred)
        return TupleType((sampled, TensorType(FLOAT32, expected.shape), TensorType(FLOAT32, each.shape)))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Any) -> Sequence[Value | None]:
        return (None,)

    def localize(self, placement: Placement) -> Op:
        return replace(self, num_true=placement.in_layouts[0].local_shape(placement.in_types[0].shape)[1])

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        count = self.range_max if self.unique else self.num_sampled
        words = random_words(xp, key_of(self.seed, number_of_run(be)), (count,), (0,), (count,))
        if self.remove_accidental_hits:
            others = xp.setdiff1d(xp.arange(self.range_max), x.reshape(-1))
            hits = xp.setdiff1d(xp.arange(self.range_max), others)
        else:
            others, hits = xp.arange(self.range_max), xp.arange(0)
        if self.unique:
            order = xp.concatenate([others[xp.argsort(words[others])], hits[xp.argsort(words[hits])]])
            sampled = order[: self.num_sampled]
        else:
            known = others if others.size else hits
            sampled = known[(words % xp.uint64(known.size)).astype(xp.int64)]
        expected = self.num_sampled / self.range_max
        each = xp.full(self.num_sampled, expected, xp.float32)
        return sampled.astype(x.dtype), xp.full(x.shape, expected, xp.float32), each

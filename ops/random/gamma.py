"""These operators draw numbers of the gamma distribution, the same on any number of ranks.

Drawn as Marsaglia and Tsang, "A simple method for generating gamma variables", 2000: a number is tried until one is
taken. Every try has words of its own, so that an element's number depends on no other element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import shape_of
from mspc.ops.random.random_mask import Drawn
from mspc.ops.random.words import number_of_run
from mspc.sharding.factors import Rule
from mspc.sharding.rules import factor_names, sized


class Gamma(Drawn):
    """Float32 numbers of the gamma distribution of shape parameter alpha and rate beta, both Float32 and above 0.
    Called as `Gamma(seed, seed2)(shape, alpha, beta)`; the result has the shape to which all three are broadcast. A
    strategy has one entry for the result, one for alpha and one for beta. Where alpha or beta is not above 0 the result
    is NaN.
    """

    seed: int = 0
    seed2: int = 0
    seeds = ("seed", "seed2")
    bprop = NotDifferentiable("its result is drawn, not computed")
    samples = (
        sample((4,), (1,), dtypes=("Float32", "Float32"), low=0.1, high=3.0, shape=(8, 4), seed=1, gradient=False),
        sample((4, 1), (2,), dtypes=("Float32", "Float32"), low=0.1, high=3.0, shape=(4, 2), gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 3:
            raise MspcError(f"Gamma takes 3 arguments (shape, alpha, beta), not {len(args)}", kind=TypeError)
        shape, *tensors = args
        wanted = shape_of(self.name, "shape", shape)
        shapes = [tuple(getattr(x, "shape", ())) for x in tensors]
        try:
            result_shape = np.broadcast_shapes(wanted, *shapes)
        except ValueError:
            texts = f"shape {wanted}, alpha {shapes[0]} and beta {shapes[1]}"
            raise MspcError(f"{self.name}: {texts} cannot be broadcast together") from None
        return replace(self, shape=result_shape), tuple(tensors)

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy shards the result first."""
        return (*rule.outputs, *rule.inputs)

    def rule(self, alpha: TensorType, beta: TensorType) -> str:
        shape = self.sizes
        names = factor_names(len(shape))
        ins: list[str] = []
        for name, operand in (("alpha", alpha), ("beta", beta)):
            if operand.dtype != FLOAT32:
                raise MspcError(f"{self.name}: {name} is {operand.dtype}, not Float32", kind=TypeError)
            own = operand.shape
            last = len(shape) - len(own)
            if last < 0 or any(n not in (1, all_of) for n, all_of in zip(own, shape[last:], strict=True)):
                raise MspcError(f"{self.name}: {name} of shape {own} does not fit a result of shape {shape}")
            ins.append(" ".join("1" if n == 1 else name for n, name in zip(own, names[last:], strict=True)))
        return f"{', '.join(ins)} -> {' '.join(sized(name, n) for name, n in zip(names, shape, strict=True))}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (alpha, beta) = be.xp, inputs
        local = self.sizes
        alpha, beta = (xp.broadcast_to(x, local).astype(xp.float64) for x in (alpha, beta))
        usable = (alpha > 0) & (alpha < np.inf) & (beta > 0)  # no number is drawn of a shape without end
        least = xp.where(usable, alpha, 1.0) + (alpha < 1) - 1 / 3  # a number below 1 is drawn as one more, then shrunk
        share = 1 / xp.sqrt(9 * least)
        found, left, round_ = xp.zeros(local), usable.copy(), 1
        while left.any():
            first, second, third = (self._evenly(be, round_, which) for which in range(3))
            normal = xp.sqrt(-2 * xp.log(first)) * xp.cos(2 * np.pi * second)
            cube = (1 + share * normal) ** 3
            fits = cube > 0
            logarithm = xp.log(xp.where(fits, cube, 1.0))
            taken = left & fits & (xp.log(third) < normal**2 / 2 + least * (1 - cube + logarithm))
            found = xp.where(taken, least * cube, found)
            left, round_ = left & ~taken, round_ + 1
        small = usable & (alpha < 1)
        shrunk = self._evenly(be, 0, 0) ** (1 / xp.where(small, alpha, 1.0))
        return xp.where(usable, xp.where(small, found * shrunk, found) / beta, xp.nan).astype(xp.float32)

    def _evenly(self, be: ArrayBackend, round_: int, which: int) -> Any:
        """Float64 numbers above 0 and up to 1 of one try."""
        xp = be.xp
        words = self.words(be, self.seed, self.seed2, number_of_run(be), round_, which)
        return ((words >> xp.uint64(11)).astype(xp.float64) + 1) * 2.0**-53

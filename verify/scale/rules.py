"""What the rule of an operator says of the divisors of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.verify.scale.dimensions import Divisors, Product

Dims = Sequence[Sequence[Product]]


def follow_rule(divisors: Divisors, op: Op, types: Sequence[TensorType], operands: Dims, made: Dims) -> None:
    """Note which dimensions of operands and results are the same, and which are products of others; all of an operator
    without a rule keep their sizes."""
    try:
        rule = op.parsed_rule(*types)
    except (MspcError, NotImplementedError, AttributeError):
        for dims in (*operands, *made):
            for dim in dims:
                divisors.freeze(dim)
        return
    sides = [*zip(rule.inputs, operands, strict=True), *zip(rule.outputs, made, strict=False)]
    # Dimensions of one factor first: they tell what those are made of that several factors make.
    pairs = [(names, dim) for side, dims in sides for names, dim in zip(side, dims, strict=True)]
    factors: dict[int, Product] = {}
    for names, dim in sorted(pairs, key=lambda pair: len(pair[0]) > 1):
        product: list[int] = []
        for factor in names:  # none where a dimension is of size 1, broadcast or sharded until one element is left
            if factor not in factors:
                factors[factor] = divisors.new()
                divisors.divides(factors[factor], rule.sizes[factor])
            product += factors[factor]
        if names:
            divisors.equal(dim, tuple(product))

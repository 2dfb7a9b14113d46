"""`RmsNorm` over a dimension that its strategy cuts: small operators, whose mean is a sum over the ranks.

One device runs the same operators, so that `mspc verify` can compare them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.ops.primitive import Primitive
from mspc.compiler.frontend.sharding import marked
from mspc.compiler.frontend.state import Tracer
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import FLOAT32, FLOAT64
from mspc.ops.nn.norm import RmsNorm
from mspc.ops.op import Op


def cut_norm(tracer: Tracer, primitive: Primitive, op: Op, operands: Sequence[Any]) -> Any:
    """(normalised x, reciprocal root) of an RmsNorm whose normalised dimensions are cut; None for anything else."""
    strategy = primitive.in_strategy
    if not isinstance(op, RmsNorm) or not strategy or len(strategy) != 2 or primitive.out_strategy is not None:
        return None
    x, gamma = (tracer.value(operand) for operand in operands)
    dims = len(gamma.shape)
    entry = strategy[0]
    cuts: tuple[int, ...] = entry.strategy if isinstance(entry, NamedLayout) else entry
    if len(cuts) != len(x.shape) or all(cut == 1 for cut in cuts[len(cuts) - dims :]):
        return None
    _check_same(tracer, op, strategy, cuts[len(cuts) - dims :])
    dtype = x.tensor_type.dtype
    wide = dtype if dtype in (FLOAT32, FLOAT64) else FLOAT32
    if tracer.sharded:
        x, gamma = (marked(tracer, value, e) for value, e in zip((x, gamma), strategy, strict=True))
    else:
        tracer.keep(primitive)
        tracer.ignored.add(id(primitive))
    x, gamma = tracer.cast(x, wide), tracer.cast(gamma, wide)
    axes = tuple(range(len(cuts) - dims, len(cuts)))
    mean = tracer.emit(tracer.op("ReduceMean", axis=axes, keep_dims=True), tracer.emit(tracer.op("Square"), x))
    root = tracer.emit(tracer.op("Rsqrt"), tracer.emit(tracer.op("Add"), mean, op.epsilon))
    scaled = tracer.emit(tracer.op("Mul"), tracer.emit(tracer.op("Mul"), x, root), gamma)
    return tracer.cast(scaled, dtype), root


def _check_same(tracer: Tracer, op: Op, strategy: Sequence[Any], last: tuple[int, ...]) -> None:
    """Raise MspcError where gamma is not cut as the last dimensions of x are."""
    first, second = strategy
    if isinstance(first, NamedLayout) and isinstance(second, NamedLayout):
        same = first.axes[len(first.axes) - len(last) :] == second.axes
    else:
        same = last == second
    if not same:
        raise tracer.error(
            f"{op.name}: the last dimensions of input 0 are cut {last}, but input 1 "
            f"{getattr(second, 'strategy', second)}",
            ["cut both alike"],
        )

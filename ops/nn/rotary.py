"""These operators give queries and keys their rotary position embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.control.structural import items
from mspc.ops.math.arithmetic import Add, Mul, Neg
from mspc.ops.op import Gradients, Op, require_float, require_same, sample
from mspc.ops.operator_arguments import int_of
from mspc.ops.tensor.broadcast import sum_to_shape, zeros
from mspc.ops.tensor.creation import OnesLike
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import take_part


class ApplyRotaryPosEmb(Op):
    """(query, key), each x * cos + rotated(x) * sin; rotated(x) is its second half, negated, before its first.

    With four dimensions [batch, place, head, size], cos and sin broadcast to them; with three [batch, place, heads *
    size] they are [place, size], or, for one place, [batch, size]. Called as `ApplyRotaryPosEmb()(query, key, cos, sin,
    position_ids)`: the rows of cos and sin are the positions' already, and position_ids changes nothing, nor does
    cos_format.
    """

    cos_format: int = 0
    followers = (1, 2, 3)
    linear_in = ()
    samples = (
        sample((4, 8, 4, 6), (4, 8, 2, 6), (4, 8, 1, 6), (4, 8, 1, 6), (4,), dtypes=("Float64",) * 4 + ("Int32",)),
        sample((4, 2, 8, 4), (4, 2, 8, 4), (1, 2, 1, 4), (1, 2, 1, 4), (1,), dtypes=("Float64",) * 4 + ("Int32",)),
        sample((4, 8, 16), (4, 8, 8), (8, 4), (8, 4), (4,), dtypes=("Float64",) * 4 + ("Int32",)),
        sample((4, 1, 16), (4, 1, 16), (4, 8), (4, 8), (4,), dtypes=("Float64",) * 4 + ("Int32",)),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        """Return limits for the positions, which nothing reads: any small number will do."""
        return {4: 1}

    def check(self, *types: TensorType) -> None:
        require_float(self.name, *types[:4])
        require_same(self.name, types[0], types[1])

    def rule(
        self, query: TensorType, key: TensorType, cos: TensorType, sin: TensorType, position_ids: TensorType
    ) -> str:
        rank, size = len(query.shape), cos.shape[-1] if cos.shape else 0
        fits = (rank, len(cos.shape)) in ((3, 2), (4, 4)) and len(key.shape) == rank
        if not fits or not size or size % 2:
            raise MspcError(
                f"{self.name}: query {query.shape} and key {key.shape} must have 4 dimensions, and cos {cos.shape} as "
                "many, or 3 and 2; the last one of cos must be even"
            )
        m = "n" if query.shape == key.shape else "m"
        if rank == 4:
            table = " ".join("1" if n == 1 else name for n, name in zip(cos.shape, "bsnd", strict=True))
            return self._rule_of("b s n d!", f"b s {m} d!", table.replace("d", "d!"), len(position_ids.shape))
        per_batch = query.shape[1] == 1 and cos.shape[0] == query.shape[0]
        table = f"{'b' if per_batch else 's' if query.shape[1] != 1 else '1'} d!"
        return self._rule_of(f"b s (n d={size}!)", f"b s ({m} d={size}!)", table, len(position_ids.shape))

    def _rule_of(self, query: str, key: str, table: str, ids: int) -> str:
        held = " ".join(f"p{i}!" for i in range(ids))
        return f"{query}, {key}, {table}, {table}, {held} -> {query}, {key}"

    def bprop(
        self, b: Builder, query: Value, key: Value, cos: Value, sin: Value, position_ids: Value, out: Value, dout: Any
    ) -> Gradients:
        grads = [zeros(b, x.tensor_type) if d is None else d for x, d in zip((query, key), dout, strict=True)]
        half = sin.shape[-1] // 2
        axis = len(sin.shape) - 1
        halves = [take_part(b, sin, axis, half, 2 * half), take_part(b, sin, axis, 0, half)]
        back = b.emit(Neg(), b.emit(Concat(axis=axis), *halves))
        dquery, dkey = items(b, b.emit(self, *grads, cos, back, position_ids), 2)
        none, one = zeros(b, cos.tensor_type), b.emit(OnesLike(), cos)
        turned = items(b, b.emit(self, query, key, none, one, position_ids), 2)
        dcos = self._table_gradient(b, cos, grads, (query, key))
        return dquery, dkey, dcos, self._table_gradient(b, sin, grads, turned), None

    def _table_gradient(self, b: Builder, table: Value, grads: Sequence[Value], factors: Sequence[Value]) -> Value:
        parts: list[Value] = []
        for grad, factor in zip(grads, factors, strict=True):
            product = b.emit(Mul(), grad, factor)
            parts.append(sum_to_shape(b, self._by_heads(b, product, table), self._table_shape(grad.shape, table.shape)))
        total = b.emit(Add(), *parts)
        return total if total.shape == table.shape else b.emit(Reshape(table.shape), total)

    def _by_heads(self, b: Builder, x: Value, table: Value) -> Value:
        size = table.shape[-1]
        return x if len(x.shape) == 4 else b.emit(Reshape((*x.shape[:2], x.shape[2] // size, size)), x)

    def _table_shape(self, shape: Sequence[int], table: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of cos and sin as tables of four dimensions, for x of this shape."""
        if len(shape) == 4:
            return tuple(table)
        rows = (table[0], 1) if shape[1] == 1 else (1, table[0])
        return (*rows, 1, table[1])

    def compute(self, xp: Any, query: Any, key: Any, cos: Any, sin: Any, _: Any) -> Any:
        found: list[Any] = []
        for x in (query, key):
            shape = self._table_shape(x.shape, cos.shape)
            heads = x if x.ndim == 4 else x.reshape(*x.shape[:2], x.shape[2] // max(1, shape[-1]), shape[-1])
            half = shape[-1] // 2
            turned = xp.concatenate((-heads[..., half:], heads[..., :half]), axis=-1)
            rotated = heads * cos.reshape(shape) + turned * sin.reshape(shape)
            found.append(rotated.reshape(x.shape).astype(x.dtype))
        return tuple(found)


class RotaryPositionEmbedding(Op):
    """x * cos + rotated(x) * sin; rotated(x) is the second half of the last dimension, negated, before the first; cos
    and sin broadcast to x. mode must be 0: pairs of neighbours, 1, are not built. Called as
    `RotaryPositionEmbedding()(x, cos, sin, mode)`."""

    mode: int = 0
    float_only = True
    one_type = True
    settings = (("mode", int_of),)
    optional_settings = 1
    samples = (
        sample((4, 8, 2, 6), (4, 8, 1, 6), (4, 8, 1, 6)),
        sample((4, 2, 8, 4), (1, 1, 8, 4), (1, 1, 8, 4)),
    )

    def rule(self, x: TensorType, cos: TensorType, sin: TensorType) -> str:
        if self.mode:
            raise MspcError(f"{self.name}: mode is {self.mode}, not 0; pairs of neighbours are not built")
        fits = len(x.shape) == len(cos.shape) == 4 and cos.shape == sin.shape and x.shape[3:] == cos.shape[3:]
        if not fits or x.shape[3] % 2 or any(n not in (1, m) for n, m in zip(cos.shape, x.shape, strict=True)):
            raise MspcError(
                f"{self.name}: x {x.shape}, cos {cos.shape} and sin {sin.shape} must have 4 dimensions, the last one "
                "of one even size, and cos and sin broadcast to x"
            )
        table = " ".join("1" if n == 1 else name for n, name in zip(cos.shape[:3], "bsn", strict=True))
        return f"b s n d!, {table} d!, {table} d! -> b s n d!"

    def bprop(self, b: Builder, x: Value, cos: Value, sin: Value, out: Value, dout: Value) -> Gradients:
        half = sin.shape[3] // 2
        halves = [take_part(b, sin, 3, half, 2 * half), take_part(b, sin, 3, 0, half)]
        back = b.emit(Neg(), b.emit(Concat(axis=3), *halves))
        none, one = zeros(b, cos.tensor_type), b.emit(OnesLike(), cos)
        turned = b.emit(self, x, none, one)
        dcos, dsin = (sum_to_shape(b, b.emit(Mul(), dout, factor), cos.shape) for factor in (x, turned))
        return b.emit(self, dout, cos, back), dcos, dsin

    def compute(self, xp: Any, x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[3] // 2
        turned = xp.concatenate((-x[..., half:], x[..., :half]), axis=-1)
        return x * cos + turned * sin

"""This attention is for networks that serve: operands may be padded, lengths of the sequences come beside them, and
there is no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BOOL, INT8, UINT8, TensorType, Type, dtype_of
from mspc.ops.bases import require_float, require_same
from mspc.ops.nn.attention import FlashAttentionScore, statistics_dtype
from mspc.ops.nn.attention_base import COMPRESSED
from mspc.ops.nn.attention_kernel import UNLIMITED, Scores, Shape, by_head, forward
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, Placement

MASK, SHIFT, QUERIES, KEYS = "attn_mask", "pse_shift", "actual_seq_lengths", "actual_seq_lengths_kv"
SCALE, OFFSET = "antiquant_scale", "antiquant_offset"


class ServingAttention(Op, abstract=True):
    """softmax(scale_value * query @ key^T + pse_shift) @ value for every head, of sequences that may be padded.

    Operands, of which those behind value may be None: attn_mask [queries, keys], [batch or 1, queries, keys] or
    [batch or 1, 1, queries, keys], not 0 where a query does not look at a key (a triangle of (2048, 2048), which is not
    read, in the sparse modes 2 to 4); pse_shift, added to the scores, [batch or 1, heads or 1, queries, keys];
    actual_seq_lengths, actual_seq_lengths_kv [batch], of the sequences at the beginning of the padded ones.
    A query behind its length gives zeros, and nobody looks at a key behind its own. antiquant_scale and
    antiquant_offset, where the operator takes them, are those of key and those of value, [2, heads * depth] or [2,
    heads, 1, depth] with the heads of key or those of query: key stands for (key + offset) * scale, and may be Int8.

    given: which of these operands are there, in their order. first_query, all_queries: see FlashAttentionScore, whose
    other fields have the same meaning as here; num_key_value_heads is checked where it is not 0.

    Class attributes:
        order: names of the operands behind value, as a call gives them.
        absent: those that must be None.
        layouts: values that `input_layout` may have.
        mask_of_batch: an attn_mask of two dimensions is [batch, keys].
        one_query: with one query a sequence, only the lengths of keys and a mask count.
    """

    order: ClassVar[tuple[str, ...]]
    absent: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[str, ...]] = ("BSH", "BNSD")
    mask_of_batch: ClassVar[bool] = False
    one_query: ClassVar[bool] = False
    omitted = ("given", "first_query", "all_queries")
    checks_where_called = True
    bprop = NotDifferentiable("it serves trained networks; FlashAttentionScore has one")

    if TYPE_CHECKING:  # every operator has these, in an order of its own
        num_heads: int
        scale_value: float
        input_layout: str
        num_key_value_heads: int
        given: tuple[str, ...]
        first_query: int
        all_queries: int

    @property
    def sparse(self) -> tuple[int, int, int]:
        """(sparse_mode, pre_tokens, next_tokens)."""
        return 0, UNLIMITED, UNLIMITED

    def call(self, query: Any, key: Any, value: Any, *rest: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(rest) > len(self.order):
            most = 3 + len(self.order)
            raise MspcError(f"{self.name} takes 3 to {most} arguments, not {3 + len(rest)}", kind=TypeError)
        there = {name: _as_numbers(x) for name, x in zip(self.order, rest, strict=False) if x is not None}
        for name in self.absent:
            if name in there:
                raise MspcError(f"{self.name}: {name} must be None; quantised and paged caches are not built")
        if OFFSET in there and SCALE not in there:
            raise MspcError(f"{self.name}: antiquant_offset needs antiquant_scale, which is None")
        if self.sparse[0] >= 2:
            self._drop_triangle(there)
        key, value = self._alone("key", key), self._alone("value", value)
        return replace(cast(Any, self), given=tuple(there)), (query, key, value, *there.values())

    def _alone(self, name: str, operand: Any) -> Any:
        """The one tensor of a list of one."""
        if not isinstance(operand, (tuple, list)):
            return operand
        tensors = cast(Sequence[Any], operand)
        if len(tensors) != 1:
            raise MspcError(
                f"{self.name}: {name} holds {len(tensors)} tensors, not 1; a tensor for each sequence is not built"
            )
        return tensors[0]

    def _drop_triangle(self, there: dict[str, Any]) -> None:
        mask = there.pop(MASK, None)
        shape = COMPRESSED if mask is None else tuple(mask.shape)
        if shape[-2:] != COMPRESSED or any(n != 1 for n in shape[:-2]):
            raise MspcError(
                f"{self.name}: attn_mask of sparse_mode {self.sparse[0]} is a triangle of {COMPRESSED} or None, not "
                f"a tensor of {shape}",
                notes=["a mask of your own goes with sparse_mode 0 or 1"],
            )

    @property
    def scored(self) -> FlashAttentionScore:
        """The operator that gives the same where no length is given."""
        names = {MASK: "attn_mask", SHIFT: "real_shift"}
        there = tuple(names[name] for name in self.given if name in names)
        mode, before, behind = self.sparse
        return FlashAttentionScore(
            self.num_heads, 1.0, self.scale_value, before, behind, 0, self.input_layout, mode, there, 0,
            self.first_query, self.all_queries,
        )  # fmt: skip

    def check_settings(self) -> None:
        """Raises MspcError for attributes that mspc does not know."""
        if self.input_layout not in self.layouts:
            raise MspcError(
                f"{self.name}: input_layout is {self.input_layout!r}, not one of {', '.join(self.layouts)}",
                kind=ValueError,
            )
        if self.sparse[0] == 1 and MASK not in self.given:
            raise MspcError(f"{self.name}: sparse_mode 1 needs attn_mask")
        self.scored.check_settings()

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """The operands behind value that are there."""
        if len(operands) != 3 + len(self.given):
            raise MspcError(f"{self.name} takes {3 + len(self.given)} tensors, not {len(operands)}", kind=TypeError)
        return dict(zip(self.given, operands[3:], strict=True))

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        sizes = self.scored.sizes(types)
        limits = {QUERIES: sizes.queries, KEYS: sizes.keys}
        return {3 + i: limits[name] for i, name in enumerate(self.given) if name in limits}

    def _texts(self, types: Sequence[TensorType]) -> dict[str, str]:
        """The rule's text of every tensor."""
        self.check_settings()
        found, scored = self.named(types), self.scored
        masks = [self._four(found[name]) for name in self.given if name in (MASK, SHIFT)]
        shape = scored.sizes(types)
        if self.num_key_value_heads not in (0, shape.key_heads):
            raise MspcError(
                f"{self.name}: key has {shape.key_heads} heads, but num_key_value_heads is {self.num_key_value_heads}"
            )
        texts = scored.texts([*types[:3], *masks])
        for name in (QUERIES, KEYS):
            texts[name] = "b"
        texts[SHIFT] = texts.get("real_shift", "")
        if MASK in found:
            sides = texts[MASK].split()
            rank = len(found[MASK].shape)
            two = sides[::3] if self.mask_of_batch else sides[2:]
            texts[MASK] = " ".join(sides if rank == 4 else [sides[0], *sides[2:]] if rank == 3 else two)
        for name in (SCALE, OFFSET):
            if name in found:
                texts[name] = self._scale_text(name, found[name].shape, shape)
        return texts

    def _scale_text(self, name: str, given: tuple[int, ...], shape: Shape) -> str:
        """The rule's text of the numbers with which key and value are read. Raises MspcError for other shapes."""
        flat = self.input_layout == "BSH"
        of_heads: dict[tuple[int, ...], str] = {
            (2, heads * shape.depth) if flat else (2, heads, 1, shape.depth): text
            for heads, text in ((shape.heads, f"m={shape.key_heads} g={shape.group}"), (shape.key_heads, "m"))
        }
        if given not in of_heads or shape.depth != shape.value_depth:
            allowed = " or ".join(str(known) for known in of_heads)
            raise MspcError(f"{self.name}: {name} has shape {given}, not {allowed}")
        return f"p=2! ({of_heads[given]} d!)" if flat else f"p=2! ({of_heads[given]}) 1 d!"

    def ruled(self, types: Sequence[TensorType], *results: str) -> str:
        """The rule with these tensors as results."""
        texts = self._texts(types)
        ins = ", ".join(texts[name] for name in ("query", "key", "value", *self.given))
        return f"{ins} -> {', '.join(texts.get(name, name) for name in results)}"

    def rule(self, *types: TensorType) -> str:
        return self.ruled(types, "out")

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        read = [t for t in types[:3] if not (SCALE in self.given and t.dtype == INT8)]
        require_float(self.name, types[0], *read)
        require_same(self.name, types[0], *read)
        for name, operand in self.named(types).items():
            if name in (SHIFT, SCALE, OFFSET):
                allowed, what = operand.dtype.is_float, "a floating-point tensor"
            elif name == MASK:
                allowed, what = operand.dtype in (BOOL, INT8, UINT8) or operand.dtype.is_float, "Bool, Int8 or UInt8"
            else:
                allowed, what = operand.dtype.is_integer, "a tensor of integers"
            if not allowed:
                raise MspcError(f"{self.name}: {name} is {operand.dtype}, not {what}", kind=TypeError)
        return inferred

    def localize(self, placement: Placement) -> Op:
        mine = cast(FlashAttentionScore, self.scored.localize(placement))
        parts = self.num_heads // mine.head_num
        return replace(
            cast(Any, self), num_heads=mine.head_num, num_key_value_heads=self.num_key_value_heads // parts,
            first_query=mine.first_query, all_queries=mine.all_queries,
        )  # fmt: skip

    def computed(self, be: ArrayBackend, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """The result, and the logarithms of the sums of exp(score) [batch, heads, queries, 1]."""
        xp, scored, found = be.xp, self.scored, self.named(inputs)
        shape = scored.shape_of(inputs)
        low, high = scored.window(shape)
        if self.one_query and (self.all_queries or shape.queries) == 1:
            low = high = None
            found.pop(QUERIES, None)
        shift = found.get(SHIFT)
        scores = Scores(self.scale_value, shift, self._hidden(xp, shape.queries, shape.keys, found), low, high)
        query, key, value = inputs[:3]
        n, m = shape.heads, shape.key_heads
        sums = xp.empty((shape.batch, n, shape.queries, 1), statistics_dtype(dtype_of(query.dtype)).numpy)
        last = shape.value_depth if query.ndim == 4 else n * shape.value_depth
        result = xp.empty((*query.shape[:-1], last), query.dtype)
        layout = self.input_layout
        views = [by_head(x, layout, heads) for x, heads in zip((query, key, value, result), (n, m, m, n), strict=True)]
        if SCALE in found:
            views[1:3] = [self._read(xp, view, side, found, shape) for side, view in enumerate(views[1:3])]
            shape = replace(shape, key_heads=views[1].shape[1])
        forward(xp, shape, scores, views, sums)
        return result, sums

    def _read(self, xp: Any, held: Any, side: int, found: Mapping[str, Any], shape: Shape) -> Any:
        """Keys (side 0) or values (side 1) by head, as the scale and the offset say they are."""
        scale = found[SCALE][side].reshape(-1, 1, shape.depth)
        offset = found[OFFSET][side].reshape(-1, 1, shape.depth) if OFFSET in found else 0
        if scale.shape[0] != held.shape[1]:
            held = xp.repeat(held, shape.group, axis=1)
        return (held + offset) * scale

    def _hidden(self, xp: Any, queries: int, keys: int, found: Mapping[str, Any]) -> Any:
        """Where no query looks, with four dimensions; None: everywhere may be looked at."""
        parts: list[Any] = []
        if MASK in found:
            parts.append(self._four(found[MASK]) != 0)
        for name, size, first, axis in ((QUERIES, queries, self.first_query, -1), (KEYS, keys, 0, -2)):
            if name in found:
                behind = xp.arange(first, first + size)[None, :] >= found[name][:, None]
                parts.append(xp.expand_dims(behind[:, None, :], axis))
        if not parts:
            return None
        hidden = parts[0]
        for part in parts[1:]:
            hidden = hidden | part
        shape = (hidden.shape[0], hidden.shape[1], queries, keys)
        return xp.broadcast_to(hidden, shape)

    def _four(self, mask: Any) -> Any:
        """A mask or a shift, an array or a type, with four dimensions; one of three has none for the heads."""
        shape = tuple(mask.shape)
        if len(shape) == 4 or len(shape) < 2:
            return mask
        if len(shape) == 3:
            expanded = (shape[0], 1, *shape[1:])
        else:
            expanded = (shape[0], 1, 1, shape[1]) if self.mask_of_batch else (1, 1, *shape)
        return mask.with_shape(expanded) if isinstance(mask, TensorType) else mask.reshape(expanded)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.computed(be, inputs)[0]


def _as_numbers(operand: Any) -> Any:
    """Lengths that are written as a list or a tuple, as an array."""
    return np.array(operand, np.int64) if isinstance(operand, (tuple, list)) else operand

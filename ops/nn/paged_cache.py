"""A serving network stores keys and values in blocks of places: these operators write them, and attend to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float, require_same
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, Placement, sample
from mspc.ops.operator_arguments import axis_in, int_of, split_call
from mspc.ops.tensor.embedding import require_integer, shard_begin
from mspc.sharding.rules import factor_names

_SERVES = NotDifferentiable("it serves trained networks")


class KVCacheScatterUpdate(Op):
    """var with updates in the place of what it holds: those of row i from place indices[i] of `axis` on. Called as
    `KVCacheScatterUpdate()(var, indices, updates, axis, reduce)`, where reduce is "none" or "update".

    offset, total: as for ScatterUpdate, along `axis`.
    """

    axis: int = -1
    reduce: str = "none"
    offset: int = 0
    total: int = 0
    has_side_effect = True
    mutates = (0,)
    omitted = ("offset", "total")
    bprop = _SERVES
    samples = (
        sample((4, 2, 8, 3), (4,), (4, 2, 1, 3), dtypes=("Float64", "Int64", "Float64"), low=0, high=8, axis=-2,
               gradient=False),
        sample((4, 8), (4,), (4, 1), dtypes=("Float64", "Int32", "Float64"), low=0, high=8, gradient=False),
        sample((4, 2, 8), (4,), (4, 2, 8), dtypes=("Float64", "Int64", "Float64"), low=0, high=1, gradient=False),
    )  # fmt: skip

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 3, ("axis", "reduce"), optional=1)
        axis = int_of(self.name, "axis", found["axis"])
        return replace(self, axis=axis, reduce=found.get("reduce", "none")), tensors

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        require_same(self.name, types[0], types[2])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[self.axis] - types[2].shape[self.axis] + 1}

    def rule(self, var: TensorType, indices: TensorType, updates: TensorType) -> str:
        if self.reduce not in ("none", "update"):
            raise MspcError(f"{self.name}: reduce must be 'none' or 'update', not {self.reduce!r}")
        rank, axis = len(var.shape), axis_in(self.name, self.axis, len(var.shape))
        if axis == 0 or len(updates.shape) != rank or indices.shape != var.shape[:1]:
            raise MspcError(
                f"{self.name}: var {var.shape}, indices {indices.shape} and updates {updates.shape} do not fit axis "
                f"{self.axis}",
                notes=["indices is one place for each row of var, and updates differ from var in that axis alone"],
            )
        names = factor_names(rank)
        several = [*names[:axis], f"{factor_names(1, rank)[0]}!", *names[axis + 1 :]]
        new = names if updates.shape == var.shape else several
        return f"{' '.join(names)}, {names[0]}, {' '.join(new)} -> {' '.join(names)}"

    def localize(self, placement: Placement) -> Op:
        """Updates as long as `axis` are sharded with it: both slices start at the same place."""
        shape = placement.in_types[0].shape
        if placement.in_types[2].shape == shape:
            return self
        part = shard_begin(placement, 0, axis_in(self.name, self.axis, len(shape)))
        return self if part is None else replace(self, offset=part, total=shape[self.axis])

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (var, indices, updates) = be.xp, inputs
        axis = self.axis % var.ndim
        length, total = updates.shape[axis], self.total or var.shape[axis]
        for row, first in enumerate(indices.tolist()):
            if not 0 <= first <= total - length:
                raise IndexError(f"{length} places from {first} on are not among {total}")
            begin, end = max(first - self.offset, 0), min(first - self.offset + length, var.shape[axis])
            if begin < end:
                skipped = begin - (first - self.offset)
                new = xp.moveaxis(updates[row], axis - 1, 0)[skipped : skipped + end - begin]
                xp.moveaxis(var[row], axis - 1, 0)[begin:end] = new
        return var


class ReshapeAndCache(Op):
    """key itself; beside it the rows of key and value [..., heads * size] are written to key_cache and value_cache
    [blocks, places, heads, size], each at its number in slot_mapping, which counts the places of all blocks. A row of a
    negative number is left out."""

    updates_aside = True
    has_side_effect = True
    mutates = (2, 3)
    bprop = _SERVES
    samples = (
        sample((2, 3, 8), (2, 3, 8), (4, 2, 4, 2), (4, 2, 4, 2), (6,), dtypes=(*("Float64",) * 4, "Int32"), low=0,
               high=8, gradient=False),
        sample((3, 8), (3, 8), (4, 2, 4, 2), (4, 2, 4, 2), (3,), dtypes=(*("Float64",) * 4, "Int64"), low=-2, high=8,
               gradient=False),
    )  # fmt: skip

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_same(self.name, *types[:4])
        require_integer(self.name, 4, types[4])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {4: types[2].shape[0] * types[2].shape[1]}

    def rule(
        self, key: TensorType, value: TensorType, key_cache: TensorType, value_cache: TensorType,
        slot_mapping: TensorType,
    ) -> str:  # fmt: skip
        rows = len(key.shape) - 1
        fits = rows >= 1 and key.shape == value.shape and key_cache.shape == value_cache.shape
        if not fits or len(key_cache.shape) != 4 or key.shape[-1] != key_cache.shape[2] * key_cache.shape[3]:
            raise MspcError(
                f"{self.name}: key {key.shape} and value {value.shape} must be [..., heads * size], and their caches "
                f"{key_cache.shape} and {value_cache.shape} [blocks, places, heads, size]"
            )
        heads, size = key_cache.shape[2:]
        side = " ".join([*(f"r{i}!" for i in range(rows)), f"(n={heads} d={size}!)"])
        return f"{side}, {side}, p! q! n d!, p! q! n d!, t! -> {side}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        key, value, key_cache, value_cache, slots = inputs
        places = slots.reshape(-1)
        written = places >= 0
        for rows, cache in ((key, key_cache), (value, value_cache)):
            blocks, count, heads, size = cache.shape
            held = cache.reshape(blocks * count, heads, size)
            held[places[written]] = rows.reshape(-1, heads, size)[written]
            if not be.xp.shares_memory(held, cache):
                cache[...] = held.reshape(cache.shape)
        return key.copy()


class _Paged(Op, abstract=True):
    """softmax(scale_value * query @ key^T + alibi_mask) @ value for every head of query [batch, queries, heads * size].

    The keys of sequence i are the first context_lens[i] places of the blocks block_tables[i] of key_cache [blocks,
    places, kv heads, size]; context_lens may be longer than the batch. masked: alibi_mask [batch, heads, queries or 1,
    keys or 1] is the last operand. Quantised caches and other masks are not built.

    Class attributes:
        order: names of the operands behind context_lens.
    """

    head_num: int
    scale_value: float
    kv_head_num: int
    kv_cache_quant_mode: str = "DEFAULT"
    order: ClassVar[tuple[str, ...]]

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if not 5 <= len(args) <= 5 + len(self.order):
            raise MspcError(f"{self.name} takes 5 to {5 + len(self.order)} arguments, not {len(args)}", kind=TypeError)
        there = {name: x for name, x in zip(self.order, args[5:], strict=False) if x is not None}
        first = there.get("antiquant_scale")
        if list(there) == ["antiquant_scale"] and len(getattr(first, "shape", ())) == 4:
            there = {"alibi_mask": first}  # behind context_lens, as MindSpore's example of PagedAttentionMask calls it
        mask = there.pop("alibi_mask", None)
        if there or any(x is None for x in args[:5]):
            name = next(iter(there), "an operand")
            what = "must be None; quantised caches and other masks are not built" if there else "is None"
            raise MspcError(f"{self.name}: {name} {what}")
        return self.with_mask(mask is not None), (*args[:5], *(() if mask is None else (mask,)))

    def with_mask(self, masked: bool) -> Op:
        """The operator with or without `alibi_mask`."""
        raise NotImplementedError

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        blocks, places = types[1].shape[:2]
        return {3: blocks, 4: types[3].shape[1] * places + 1}

    def check(self, types: Sequence[TensorType]) -> None:
        """Raises MspcError where attributes, types or shapes do not fit."""
        if self.kv_cache_quant_mode != "DEFAULT":
            raise MspcError(f"{self.name}: kv_cache_quant_mode must be 'DEFAULT', not {self.kv_cache_quant_mode!r}")
        query, key, value, tables, lengths = types[:5]
        require_float(self.name, *types[:3])
        require_same(self.name, *types[:3])
        for index in (3, 4):
            require_integer(self.name, index, types[index])
        ranks = [len(t.shape) for t in types[:5]]
        if ranks != [3, 4, 4, 2, 1] or key.shape != value.shape or tables.shape[0] != query.shape[0]:
            shapes = ", ".join(str(t.shape) for t in types[:5])
            raise MspcError(
                f"{self.name}: query [batch, queries, heads * size], two caches [blocks, places, kv heads, size], "
                f"block_tables [batch, blocks] and context_lens [batch] have no shapes {shapes}"
            )
        heads, kv = self.head_num, self.kv_head_num
        if kv < 1 or heads % kv or key.shape[2] != kv or query.shape[2] != heads * key.shape[3]:
            raise MspcError(
                f"{self.name}: {heads} heads of query and {kv} of the caches do not fit {query.shape} and {key.shape}"
            )
        if lengths.shape[0] < query.shape[0]:
            raise MspcError(f"{self.name}: context_lens has {lengths.shape[0]} lengths for {query.shape[0]} sequences")

    def texts(self, types: Sequence[TensorType]) -> tuple[str, str]:
        """(the rule's texts of the operands, that of the result)."""
        self.check(types)
        query, key, _, _, lengths, *mask = types
        batch, length = ("b", "b") if lengths.shape[0] == query.shape[0] else ("b!", "l!")
        side = f"{batch} s (m g={self.head_num // self.kv_head_num} d={key.shape[3]}!)"
        ins = [side, "p! q! m d!", "p! q! m d!", f"{batch} t!", length]
        for shape in [operand.shape for operand in mask]:
            if len(shape) != 4 or shape[1] not in (1, self.head_num) or not shape[3]:
                raise MspcError(f"{self.name}: alibi_mask {shape} is not [batch, heads, queries, keys]")
            heads = "1" if shape[1] == 1 else f"(m g={self.head_num // self.kv_head_num})"
            ins.append(f"{'1' if shape[0] == 1 else batch} {heads} {'1' if shape[2] == 1 else 's'} k!")
        return ", ".join(ins), side

    def localize(self, placement: Placement) -> Op:
        query, key = (placement.in_layouts[i].local_shape(placement.in_types[i].shape) for i in (0, 1))
        return replace(cast(Any, self), head_num=query[2] // key[3], kv_head_num=key[2])

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (query, keys, values, tables, lengths, *mask) = be.xp, inputs
        batch, queries, _ = query.shape
        _, places, kv, size = keys.shape
        groups = self.head_num // self.kv_head_num
        out = xp.zeros((batch, queries, kv, groups, size), query.dtype)
        for row, length in enumerate(lengths[:batch].tolist()):
            if not length:
                continue
            blocks = tables[row, : -(-length // places)]
            key, value = (cache[blocks].reshape(-1, kv, size)[:length] for cache in (keys, values))
            heads = query[row].reshape(queries, kv, groups, size)
            scores = xp.einsum("qmgd,kmd->mgqk", heads, key) * self.scale_value
            if mask:
                shift = mask[0][row if mask[0].shape[0] > 1 else 0][..., :length]
                shape = (kv, groups) if shift.shape[0] > 1 else (1, 1)
                scores += shift.reshape(*shape, *shift.shape[1:])
            weights = xp.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[row] = xp.einsum("mgqk,kmd->qmgd", weights, value)
        return out.reshape(query.shape)


_CACHE = ((4, 2, 6), (5, 3, 2, 3), (5, 3, 2, 3), (4, 2), (4,))
_KINDS = (*("Float64",) * 3, "Int32", "Int32")


class PagedAttention(_Paged):
    """Attention over keys and values in blocks; see _Paged. mask_mode must be "MASK_DEFAULT" and mla_v_dim 0."""

    mask_mode: str = "MASK_DEFAULT"
    mla_v_dim: int = 0
    masked: bool = False
    omitted = ("masked",)
    order = (
        "antiquant_scale", "antiquant_offset", "attn_mask", "q_seq_lens", "alibi_mask"
    )  # fmt: skip
    bprop = _SERVES
    samples = (
        sample(*_CACHE, dtypes=_KINDS, low=0, high=5, head_num=2, scale_value=0.5, kv_head_num=2, gradient=False),
        sample((4, 1, 12), *_CACHE[1:4], (6,), dtypes=_KINDS, low=0, high=5, head_num=4, scale_value=0.3,
               kv_head_num=2, gradient=False),
    )  # fmt: skip

    def with_mask(self, masked: bool) -> Op:
        if self.mask_mode != "MASK_DEFAULT" or self.mla_v_dim:
            raise MspcError(
                f"{self.name}: mask_mode {self.mask_mode!r} and mla_v_dim {self.mla_v_dim} are not built",
                notes=["leave them out: 'MASK_DEFAULT' and 0"],
            )
        return replace(self, masked=masked)

    def rule(self, *types: TensorType) -> str:
        return " -> ".join(self.texts(types))


class PagedAttentionMask(_Paged):
    """PagedAttention with alibi_mask as the last operand."""

    masked: bool = True
    omitted = ("masked",)
    order = ("antiquant_scale", "antiquant_offset", "alibi_mask")
    bprop = _SERVES
    samples = (
        sample(*_CACHE, (4, 2, 2, 6), dtypes=(*_KINDS, "Float64"), low=0, high=5, head_num=2, scale_value=0.5,
               kv_head_num=2, gradient=False),
        sample((4, 2, 12), *_CACHE[1:], (1, 1, 1, 6), dtypes=(*_KINDS, "Float64"), low=0, high=5, head_num=4,
               scale_value=0.5, kv_head_num=2, gradient=False),
    )  # fmt: skip

    def with_mask(self, masked: bool) -> Op:
        return replace(self, masked=masked)

    def rule(self, *types: TensorType) -> str:
        return " -> ".join(self.texts(types))

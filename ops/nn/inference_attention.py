"""MindSpore serves networks with these operators: attention over prompts, and over keys and values that are stored of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.attention import statistics_dtype
from mspc.ops.nn.attention_kernel import UNLIMITED
from mspc.ops.nn.gathered_keys import keys_gathered
from mspc.ops.nn.serving_attention import KEYS, MASK, OFFSET, QUERIES, SCALE, SHIFT, ServingAttention
from mspc.ops.op import ArrayBackend, RequestedSharding, Sample, sample


def _entry(name: str, shape: Sequence[int], sides: tuple[int, ...]) -> tuple[int, ...]:
    """What a strategy says of an operand behind value where [batch, heads, queries, keys] are sharded by `sides`."""
    if name in (QUERIES, KEYS):
        return sides[:1]
    mine = {4: sides, 3: (sides[0], *sides[2:]), 2: sides[2:]}.get(len(shape), ())
    return tuple(1 if size == 1 else shards for size, shards in zip(shape, mine, strict=False))


_QUANTISED = ("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2")
_CACHED = ("antiquant_scale", "antiquant_offset", "block_table")


def _sample(*shapes: tuple[int, ...], **attributes: Any) -> Sample:
    """Operands in Float64, masks and lengths as the names in `given` want them."""
    kinds = {MASK: "Bool", SHIFT: "Float64", SCALE: "Float64", OFFSET: "Float64"}
    dtypes = ("Float64",) * 3 + tuple(kinds.get(name, "Int64") for name in attributes.get("given", ()))
    return sample(*shapes, dtypes=dtypes, low=0, high=4, gradient=False, **attributes)


class PromptFlashAttention(ServingAttention):
    """Attention over entire prompts; see ServingAttention. Quantised operands are not built."""

    order = (
        MASK, QUERIES, KEYS, SHIFT, "deq_scale1", "quant_scale1", "deq_scale2", "quant_scale2", "quant_offset2"
    )  # fmt: skip
    absent = order[4:]

    num_heads: int = 1
    scale_value: float = 1.0
    pre_tokens: int = UNLIMITED
    next_tokens: int = 0
    input_layout: str = "BSH"
    num_key_value_heads: int = 0
    sparse_mode: int = 0
    inner_precise: int = 1
    given: tuple[str, ...] = ()
    first_query: int = 0
    all_queries: int = 0

    @property
    def sparse(self) -> tuple[int, int, int]:
        return self.sparse_mode, self.pre_tokens, self.next_tokens

    samples = (
        _sample((4, 4, 16), (4, 6, 8), (4, 6, 8), num_heads=8, num_key_value_heads=4, scale_value=0.5),
        _sample((4, 4, 4, 2), (4, 2, 6, 2), (4, 2, 6, 2), (4, 1, 4, 6), (4,), (4,), (4, 4, 4, 6), num_heads=4,
                input_layout="BNSD", next_tokens=UNLIMITED, given=(MASK, QUERIES, KEYS, SHIFT)),
        _sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (1, 4, 4), (4,), num_heads=4, pre_tokens=2, next_tokens=1,
                given=(MASK, KEYS)),
        _sample((4, 4, 8), (4, 4, 8), (4, 4, 8), (4, 4), num_heads=2, sparse_mode=1, given=(MASK,)),
        _sample((4, 2, 3, 2), (4, 2, 5, 2), (4, 2, 5, 3), (4,), num_heads=2, input_layout="BNSD", sparse_mode=3,
                given=(QUERIES,)),
    )  # fmt: skip


class IncreFlashAttention(ServingAttention):
    """Attention of one query for each sequence, over keys and values that are stored; see ServingAttention. The lengths
    are those of the keys, sharded as the batch is where a strategy does not shard them. attn_mask is [batch, keys],
    [batch, 1, keys] or [batch, 1, 1, keys]."""

    order = (MASK, KEYS, SHIFT, *_QUANTISED, SCALE, OFFSET, "block_table", "kv_padding_size")
    absent = (*_QUANTISED, "block_table", "kv_padding_size")
    mask_of_batch = True

    num_heads: int = 1
    input_layout: str = "BSH"
    scale_value: float = 1.0
    num_key_value_heads: int = 0
    block_size: int = 0
    inner_precise: int = 1
    given: tuple[str, ...] = ()
    first_query: int = 0
    all_queries: int = 0

    def infer(self, *types: Any) -> Type:
        if len(types) > 2 and self.scored.sizes(types[:3]).queries != 1:
            raise MspcError(f"{self.name}: query has shape {types[0].shape}, more than one place for a sequence")
        return super().infer(*types)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        entries = spread(asked.in_strategy or ())
        at = 3 + self.given.index(KEYS) if KEYS in self.given else len(entries)
        if at >= len(entries) or entries[at] != (1,) or not isinstance(entries[0], tuple) or entries[0][:1] == (1,):
            return None
        out = b.emit(self, *inputs)
        out.in_strategy, out.out_strategy = (*entries[:at], entries[0][:1], *entries[at + 1 :]), asked.out_strategy
        return [out]

    samples = (
        _sample((4, 1, 16), (4, 6, 8), (4, 6, 8), num_heads=8, scale_value=0.5),
        _sample((4, 4, 1, 2), (4, 2, 6, 2), (4, 2, 6, 2), (4, 1, 1, 6), (4,), (1, 4, 1, 6), num_heads=4,
                input_layout="BNSD", num_key_value_heads=2, given=(MASK, KEYS, SHIFT)),
        _sample((4, 1, 8), (4, 4, 8), (4, 4, 8), (4, 1, 4), num_heads=4, given=(MASK,)),
        _sample((4, 1, 8), (4, 4, 8), (4, 4, 8), (4, 4), num_heads=4, given=(MASK,)),
        _sample((4, 1, 8), (4, 4, 4), (4, 4, 4), (2, 4), (2, 4), num_heads=4, given=(SCALE, OFFSET)),
    )  # fmt: skip


class FusedInferAttentionScore(ServingAttention):
    """Attention over prompts or one query for each sequence: (attention_out, softmax_lse); see ServingAttention.

    softmax_lse is the logarithm of the sum of exp(score) [batch, heads, queries, 1] in Float32 (Float64 for operands of
    it), one zero where softmax_lse_flag is False. With one query a sequence the lengths of queries are not read, and
    sparse_mode, pre_tokens and next_tokens change nothing.
    """

    order = (
        SHIFT, MASK, QUERIES, KEYS, *_QUANTISED, *_CACHED, "query_padding_size", "kv_padding_size",
        "key_antiquant_scale", "key_antiquant_offset", "value_antiquant_scale", "value_antiquant_offset",
        "key_shared_prefix", "value_shared_prefix", "actual_shared_prefix_len",
    )  # fmt: skip
    absent = order[4:]
    layouts = ("BSH", "BNSD", "BSND")
    one_query = True

    num_heads: int = 1
    scale_value: float = 1.0
    pre_tokens: int = UNLIMITED
    next_tokens: int = UNLIMITED
    input_layout: str = "BSH"
    num_key_value_heads: int = 0
    sparse_mode: int = 0
    inner_precise: int = 1
    block_size: int = 0
    antiquant_mode: int = 0
    softmax_lse_flag: bool = False
    key_antiquant_mode: int = 0
    value_antiquant_mode: int = 0
    given: tuple[str, ...] = ()
    first_query: int = 0
    all_queries: int = 0

    @property
    def sparse(self) -> tuple[int, int, int]:
        return self.sparse_mode, self.pre_tokens, self.next_tokens

    def rule(self, *types: TensorType) -> str:
        return self.ruled(types, "out", "statistics" if self.softmax_lse_flag else "1")

    def infer(self, *types: Any) -> Type:
        inferred = super().infer(*types)
        assert isinstance(inferred, TupleType)
        out, sums = inferred.elements
        return TupleType((out, TensorType(statistics_dtype(out.dtype), sums.shape)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        result, sums = self.computed(be, inputs)
        return result, sums if self.softmax_lse_flag else be.xp.zeros((1,), sums.dtype)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """As in MindSpore, the operands behind value are sharded as query is, whatever their own entries say, and with
        one query a sequence key and value may be stored in slices of theirs (see ring_attention)."""
        entries = spread(asked.in_strategy or ())
        if not entries or any(isinstance(entry, NamedLayout) for entry in entries):
            return None
        axes = {"BNSD": (0, 1, 2)}.get(self.input_layout, (0, 2, 1))
        if max(axes) >= len(entries[0]):
            return None  # the pass that checks strategies reports it
        sides = (*(entries[0][axis] for axis in axes), 1)
        wanted = [_entry(name, x.shape, sides) for name, x in zip(self.given, inputs[3:], strict=True)]
        asked = replace(asked, in_strategy=(*entries[:3], *wanted))
        one_query = inputs[0].shape[axes[2]] == 1
        out = keys_gathered(b, self, self.input_layout, asked, inputs) if one_query else None
        if out is None and entries[3:] == wanted:
            return None
        if out is None:
            out = b.emit(self, *inputs)
            out.in_strategy = asked.in_strategy
        return [b.emit(TupleGetItem(i), out) for i in range(2)]

    samples = (
        _sample((4, 4, 16), (4, 6, 8), (4, 6, 8), num_heads=8, scale_value=0.5, softmax_lse_flag=True),
        _sample((4, 4, 4, 2), (4, 6, 2, 2), (4, 6, 2, 2), (4, 4, 4, 6), (4, 1, 4, 6), (4,), (4,), num_heads=4,
                input_layout="BSND", given=(SHIFT, MASK, QUERIES, KEYS)),
        _sample((4, 4, 4, 2), (4, 2, 4, 2), (4, 2, 4, 2), num_heads=4, input_layout="BNSD", sparse_mode=2),
        _sample((4, 1, 8), (4, 4, 8), (4, 4, 8), (4,), (4,), num_heads=4, sparse_mode=2, given=(QUERIES, KEYS)),
    )  # fmt: skip

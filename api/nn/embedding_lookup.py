"""Tables of embeddings are sharded over ranks as a word says: by batch, by rows, by columns, by fields."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.context import get_auto_parallel_context
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import parameter, positive
from mspc.api.placement import note_target
from mspc.ir.types import FLOAT32, INT32

_SHARDED = ("semi_auto_parallel", "auto_parallel")


class EmbeddingLookup(Cell):
    """Rows of a table [vocab_size, embedding_size] at indices [batch, fields].

    Args:
        slice_mode: in semi-automatic and automatic parallel mode, what is sharded over all ranks: "batch_slice"
            the batch, "table_row_slice" and "table_column_slice" the table, "field_slice" the fields and the table's
            rows.
        manual_shapes: for "field_slice" the number of rows that belong to each rank's fields.
        target: "CPU" or "DEVICE": where MindSpore looks up; here it is the rank's device, as a warning says where that
            is another. sparse, vocab_cache_size: accepted; they say how the table is stored there.
    """

    BATCH_SLICE = "batch_slice"
    FIELD_SLICE = "field_slice"
    TABLE_ROW_SLICE = "table_row_slice"
    TABLE_COLUMN_SLICE = "table_column_slice"

    def __init__(
        self, vocab_size: int, embedding_size: int, param_init: Any = "normal", target: str = "CPU",
        slice_mode: str = "batch_slice", manual_shapes: Any = None, max_norm: Any = None, sparse: bool = True,
        vocab_cache_size: int = 0, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.vocab_size = positive(name, "vocab_size", vocab_size)
        self.embedding_size = positive(name, "embedding_size", embedding_size)
        if target not in ("CPU", "DEVICE"):
            raise ApiValueError(f"{name}: target must be 'CPU' or 'DEVICE', not {target!r}")
        note_target(f"{name}(target={target!r})", target)
        if max_norm is not None:
            raise ApiValueError(f"{name}: max_norm is not supported")
        self.embedding_table = parameter(param_init, (vocab_size, embedding_size), dtype, "embedding_table")
        self.embeddinglookup = self.gatherv2 = self.gather = ops.Gather()  # of any target, by each of the names
        ranks = get_auto_parallel_context("device_num")
        sharded = get_auto_parallel_context("parallel_mode") in _SHARDED and ranks > 1
        strategies = {
            self.BATCH_SLICE: ((1, 1), (ranks, 1)),
            self.FIELD_SLICE: ((ranks, 1), (1, ranks)),
            self.TABLE_ROW_SLICE: ((ranks, 1), (1, 1)),
            self.TABLE_COLUMN_SLICE: ((1, ranks), (1, 1)),
        }
        if slice_mode not in strategies:
            raise ApiValueError(f"{name}: slice_mode {slice_mode!r} is not one of {', '.join(map(repr, strategies))}")
        if slice_mode == self.FIELD_SLICE and manual_shapes is None:
            raise ApiValueError(f"{name}: slice_mode 'field_slice' needs manual_shapes")
        if sharded:
            self.gather.shard(strategies[slice_mode])
            if slice_mode == self.FIELD_SLICE:
                self.gather.add_prim_attr("manual_split", tuple(manual_shapes))

    def construct(self, indices: Any) -> Any:
        return self.gather(self.embedding_table, indices, 0)


class MultiFieldEmbeddingLookup(EmbeddingLookup):
    """The embeddings of each field of a sample, weighted and combined: [batch, field_size, embedding_size].

    Called with indices, weights and field numbers, all of shape [batch, n]. A field without an element is 0.

    Args:
        field_size: number of fields. operator: "SUM", "MEAN" or "MAX".
    """

    OPERATOR_SUM = "SUM"
    OPERATOR_MEAN = "MEAN"
    OPERATOR_MAX = "MAX"

    def __init__(
        self, vocab_size: int, embedding_size: int, field_size: int, param_init: Any = "normal", target: str = "CPU",
        slice_mode: str = "batch_slice", feature_num_list: Any = None, max_norm: Any = None, sparse: bool = True,
        operator: str = "SUM", dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__(
            vocab_size, embedding_size, param_init, target, slice_mode, feature_num_list, max_norm, sparse, 0, dtype
        )
        self.field_size = positive("MultiFieldEmbeddingLookup", "field_size", field_size)
        if operator not in (self.OPERATOR_SUM, self.OPERATOR_MEAN, self.OPERATOR_MAX):
            raise ApiValueError(f"MultiFieldEmbeddingLookup: operator {operator!r} is not one of 'SUM', 'MEAN', 'MAX'")
        self.operator = operator
        self.combine = ops.BatchMatMul(transpose_a=True)
        self.maximum = ops.UnsortedSegmentMax()

    def construct(self, input_indices: Any, input_values: Any, field_ids: Any) -> Any:
        rows = self.gather(self.embedding_table, input_indices, 0) * ops.expand_dims(input_values, -1)
        hot = ops.cast(ops.one_hot(field_ids, self.field_size, 1.0, 0.0), rows.dtype)
        if self.operator == "MAX":
            return self.largest(rows, field_ids, hot)
        total = self.combine(hot, rows)
        if self.operator == "SUM":
            return total
        return total / ops.maximum(ops.expand_dims(ops.reduce_sum(hot, 1), -1), 1.0)

    def largest(self, rows: Any, field_ids: Any, hot: Any) -> Any:
        batch, size = rows.shape[0], self.field_size
        first = ops.reshape(ops.arange(0, batch * size, size, dtype=INT32), (batch, 1))
        places = ops.reshape(ops.cast(field_ids, INT32) + first, (-1,))
        found = self.maximum(ops.reshape(rows, (-1, self.embedding_size)), places, batch * size)
        there = ops.greater(ops.reshape(ops.reduce_sum(hot, 1), (-1, 1)), 0.0)
        found = ops.select(ops.broadcast_to(there, found.shape), found, ops.zeros_like(found))
        return ops.reshape(found, (batch, size, self.embedding_size))

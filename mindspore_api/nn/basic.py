"""Dense layers, embeddings, dropout, and cells that change shapes."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.initializers import HeUniform, Uniform
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.seed import new_dropout_seeds
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import get_auto_parallel_context
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.activation import get_activation
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import flag, number, parameter, positive
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.placement import note_target


class Dense(Cell):
    """x @ weight.T + bias, then the activation; weight is [out_channels, in_channels].

    Args:
        weight_init, bias_init: an initializer, its name, a number or a Tensor; None draws both
            uniformly as in
            He et al. 2015 with slope sqrt(5).
        activation: a Cell, a Primitive, a name, or None.
    """

    def __init__(
        self, in_channels: int, out_channels: int, weight_init: Any = None, bias_init: Any = None,
        has_bias: bool = True, activation: Any = None, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_channels = positive("Dense", "in_channels", in_channels)
        self.out_channels = positive("Dense", "out_channels", out_channels)
        self.has_bias = has_bias
        weight_init = HeUniform(math.sqrt(5)) if weight_init is None else weight_init
        self.weight = parameter(weight_init, (out_channels, in_channels), dtype, "weight")
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias: Parameter | None = None
        if has_bias:
            bias_init = Uniform(1 / math.sqrt(in_channels)) if bias_init is None else bias_init
            self.bias = parameter(bias_init, (out_channels,), dtype, "bias")
            self.bias_add = ops.BiasAdd()
        self.activation = get_activation(activation) if isinstance(activation, str) else activation
        if self.activation is not None and not isinstance(self.activation, (Cell, Primitive)):
            raise ApiTypeError(f"Dense: activation must be a Cell, a Primitive or a name, not {activation!r}")

    def construct(self, x: Any) -> Tensor:
        shape = x.shape
        if len(shape) != 2:
            x = ops.reshape(x, (-1, shape[-1]))
        x = self.matmul(x, self.weight)
        if self.has_bias:
            x = self.bias_add(x, self.bias)
        if self.activation is not None:
            x = self.activation(x)
        if len(shape) != 2:
            x = ops.reshape(x, (*shape[:-1], self.out_channels))
        return x

    def extend_repr(self) -> str:
        sizes = f"input_channels={self.in_channels}, output_channels={self.out_channels}"
        return f"{sizes}, has_bias={self.has_bias}"


class Flatten(Cell):
    """Dimensions start_dim to end_dim made one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def construct(self, x: Any) -> Tensor:
        return ops.flatten(x, start_dim=self.start_dim, end_dim=self.end_dim)


class Embedding(Cell):
    """Rows of a table [vocab_size, embedding_size] at the indices.

    Args:
        use_one_hot: multiply a one-hot matrix with the table instead of picking rows.
        padding_idx: this row starts as zeros.
    """

    def __init__(
        self, vocab_size: int, embedding_size: int, use_one_hot: bool = False,
        embedding_table: Any = "normal",
        dtype: Any = FLOAT32, padding_idx: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocab_size = positive("Embedding", "vocab_size", vocab_size)
        self.embedding_size = positive("Embedding", "embedding_size", embedding_size)
        self.use_one_hot = use_one_hot
        table = embedding_table
        if padding_idx is not None:
            if not 0 <= padding_idx < vocab_size:
                raise ApiValueError(f"Embedding: padding_idx {padding_idx} is not below vocab_size {vocab_size}")
            # The same values as without padding, so that later random numbers stay the same too.
            unpadded = parameter(table, (vocab_size, embedding_size), dtype, "embedding_table")
            table = _without_row(unpadded, padding_idx)
        self.embedding_table = parameter(table, (vocab_size, embedding_size), dtype, "embedding_table")
        self.gather = ops.Gather()
        self.matmul = ops.MatMul()
        # MindSpore flattens indices by these, and scripts shard them. A Gather takes indices of any shape, but one that
        # has a strategy for one dimension of them counts on flat ones.
        self.expand, self.reshape_flat, self.reshape = ops.ExpandDims(), ops.Reshape(), ops.Reshape()

    def construct(self, ids: Any) -> Tensor:
        if self.use_one_hot:
            hot = ops.one_hot(ops.reshape(ids, (-1,)), self.vocab_size, 1.0, 0.0)
            return ops.reshape(self.matmul(hot, self.embedding_table), (*ids.shape, self.embedding_size))
        strategy = self.gather.in_strategy
        if strategy is None or len(strategy) != 2 or ids.ndim == 1 or len(strategy[1]) != 1:
            return self.gather(self.embedding_table, ids, 0)
        flat = self.reshape_flat(self.expand(ids, -1), (-1,))
        return self.reshape(self.gather(self.embedding_table, flat, 0), (*ids.shape, self.embedding_size))

    def extend_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, embedding_size={self.embedding_size}"


class Dropout(Cell):
    """In training, elements set to 0 with probability p, the others divided by 1 - p; else the input.

    Args:
        keep_prob: older spelling of 1 - p.
    """

    def __init__(self, keep_prob: float = 0.5, p: float | None = None, dtype: Any = FLOAT32) -> None:
        super().__init__()
        if p is None:
            if not 0 < keep_prob <= 1:
                raise ApiValueError(f"Dropout: keep_prob {keep_prob} must be above 0 and at most 1")
            p = 1 - keep_prob
        if not 0 <= p < 1:
            raise ApiValueError(f"Dropout: p {p} must be at least 0 and below 1")
        self.p = p
        self.dropout = ops.Dropout(1 - p, *new_dropout_seeds())

    def construct(self, x: Any) -> Tensor:
        if not self.training or self.p == 0:
            return x
        out, _ = self.dropout(x)
        return out

    def extend_repr(self) -> str:
        return f"p={self.p}"


class _ChannelDropout(Cell):
    """In training, whole channels set to 0 with probability p, the others divided by 1 - p; else the input.

    Class attributes:
        dims: number of dimensions after the channels.
    """

    dims: int = 2

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        name = type(self).__name__
        if number(name, "p", p) >= 1:
            raise ApiValueError(f"{name}: p {p} must be at least 0 and below 1")
        self.p = p
        self.dropout = ops.Dropout(1 - p, *new_dropout_seeds())

    def construct(self, x: Any) -> Tensor:
        if not self.dims + 1 <= len(x.shape) <= self.dims + 2:
            ranks = f"{self.dims + 1} or {self.dims + 2}"
            raise ApiValueError(f"{self.cls_name}: the input of shape {x.shape} must have {ranks} dimensions")
        if not self.training or self.p == 0:
            return x
        mask, _ = self.dropout(ops.ones((*x.shape[: -self.dims], *(1,) * self.dims), x.dtype))
        return x * mask

    def extend_repr(self) -> str:
        return f"p={self.p}"


class Dropout1d(_ChannelDropout):
    """Dropout of whole channels of [n, c, l] or [c, l]."""

    dims = 1


class Dropout2d(_ChannelDropout):
    """Dropout of whole channels of [n, c, h, w] or [c, h, w]."""


class Dropout3d(_ChannelDropout):
    """Dropout of whole channels of [n, c, d, h, w] or [c, d, h, w]."""

    dims = 3


class LayerNorm(Cell):
    """x normalised to mean 0 and variance 1 over its last dimensions, times gamma, plus beta.

    Args:
        normalized_shape: shape of the normalised dimensions.
        begin_norm_axis, begin_params_axis: their first dimension.
    """

    def __init__(
        self, normalized_shape: Any, begin_norm_axis: int = -1, begin_params_axis: int = -1,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros", epsilon: float = 1e-7, dtype: Any = FLOAT32,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(normalized_shape, (tuple, list)):
            raise ApiTypeError(f"LayerNorm: normalized_shape must be a tuple of integers, not {normalized_shape!r}")
        shape = tuple(positive("LayerNorm", "normalized_shape", n) for n in normalized_shape)
        if not shape:
            raise ApiValueError("LayerNorm: normalized_shape is empty", ["name the sizes of the last dimensions"])
        self.normalized_shape = shape
        self.gamma = parameter(gamma_init, shape, dtype, "gamma")
        self.beta = parameter(beta_init, shape, dtype, "beta")
        self.layer_norm = ops.LayerNorm(begin_norm_axis, begin_params_axis, epsilon)

    def construct(self, input_x: Any) -> Tensor:
        y, _, _ = self.layer_norm(input_x, self.gamma, self.beta)
        return y

    def extend_repr(self) -> str:
        return f"normalized_shape={self.normalized_shape}"


class RMSNorm(Cell):
    """x divided by the root of the mean of its squares over the last dimension, times gamma."""

    def __init__(self, dim: int, eps: float = 1e-6, dtype: Any = FLOAT32) -> None:
        super().__init__()
        self.gamma = parameter("ones", (positive("RMSNorm", "dim", dim),), dtype, "gamma")
        self.rms_norm = ops.RmsNorm(eps)

    def construct(self, x: Any) -> Tensor:
        y, _ = self.rms_norm(x, self.gamma)
        return y


def _without_row(table: Tensor, row: int) -> Tensor:
    """Return the table with zeros in one row, without sampling a table that is not sampled yet."""
    if table.initial is not None:
        return Tensor(table.initial.without_row(row))
    rows = table.asnumpy()
    rows[row] = 0
    return Tensor(rows)


class ClipByNorm(Cell):
    """x scaled to the norm clip_norm if its norm is greater, along `axis`, None for all dimensions. clip_norm is a
    tensor of one value, or of a shape that x broadcasts to."""

    def __init__(self, axis: Any = None) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Any, clip_norm: Any) -> Tensor:
        wide = ops.cast(x, FLOAT32)
        squares = ops.reduce_sum(wide * wide, () if self.axis is None else self.axis, True)
        # If x is 0 throughout, the gradient of the root is not requested.
        norm = ops.sqrt(ops.select(squares > 0.0, squares, ops.ones_like(squares)))
        longest = ops.cast(clip_norm, FLOAT32)
        return ops.cast(wide * longest / ops.maximum(norm, longest), x.dtype)


class Norm(Cell):
    """The Euclidean length along `axis`, () for all dimensions."""

    def __init__(self, axis: Any = (), keep_dims: bool = False) -> None:
        super().__init__()
        self.axis = axis
        self.keep_dims = flag("Norm", "keep_dims", keep_dims)

    def construct(self, x: Any) -> Tensor:
        return ops.sqrt(ops.reduce_sum(ops.square(x), self.axis, self.keep_dims))


class OneHot(Cell):
    """A new dimension of `depth` at `axis`: on_value at the index, off_value elsewhere."""

    def __init__(
        self, axis: int = -1, depth: int = 1, on_value: float = 1.0, off_value: float = 0.0, dtype: Any = FLOAT32
    ) -> None:
        super().__init__()
        self.onehot = ops.OneHot(axis)
        self.depth = positive("OneHot", "depth", depth)
        self.on_value, self.off_value, self.dtype = on_value, off_value, dtype

    def construct(self, indices: Any) -> Tensor:
        return self.onehot(
            indices, self.depth, ops.scalar_to_tensor(self.on_value, self.dtype),
            ops.scalar_to_tensor(self.off_value, self.dtype),
        )  # fmt: skip


class Tril(Cell):
    """x on and below the diagonal k, 0 above."""

    def construct(self, x: Any, k: int = 0) -> Tensor:
        return ops.tril(x, k)


class Triu(Cell):
    """x on and above the diagonal k, 0 below."""

    def construct(self, x: Any, k: int = 0) -> Tensor:
        return ops.triu(x, k)


class MatMul(Cell):
    """The matrix product; the last two dimensions of an operand are exchanged if its flag is set. Leading dimensions
    are batches and broadcast; a vector is a row on the left and a column on the right."""

    def __init__(self, transpose_x1: bool = False, transpose_x2: bool = False) -> None:
        super().__init__()
        self.transpose_x1 = flag("MatMul", "transpose_x1", transpose_x1)
        self.transpose_x2 = flag("MatMul", "transpose_x2", transpose_x2)

    def construct(self, x1: Any, x2: Any) -> Tensor:
        if self.transpose_x1 and len(x1.shape) > 1:
            x1 = ops.swapaxes(x1, -1, -2)
        if self.transpose_x2 and len(x2.shape) > 1:
            x2 = ops.swapaxes(x2, -1, -2)
        return ops.matmul(x1, x2)


_SHARDED = ("semi_auto_parallel", "auto_parallel")


class EmbeddingLookup(Cell):
    """Rows of a table [vocab_size, embedding_size] at indices [batch, fields].

    Args:
        slice_mode: in semi-automatic and automatic parallel mode, the tensor sharded over all ranks: "batch_slice" the
            batch, "table_row_slice" and "table_column_slice" the table.
        target: "CPU" or "DEVICE": the device of the lookup in MindSpore; here it is always the rank's device, as a
            warning says if they differ. sparse, vocab_cache_size: accepted; they control the storage of the table in
            MindSpore.
    """

    BATCH_SLICE = "batch_slice"
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
            self.TABLE_ROW_SLICE: ((ranks, 1), (1, 1)),
            self.TABLE_COLUMN_SLICE: ((1, ranks), (1, 1)),
        }
        if slice_mode not in strategies:
            raise ApiValueError(f"{name}: slice_mode {slice_mode!r} is not one of {', '.join(map(repr, strategies))}")
        if manual_shapes is not None:
            raise ApiValueError(f"{name}: manual_shapes is not supported: slices of a table have one size")
        if sharded:
            self.gather.shard(strategies[slice_mode])

    def construct(self, indices: Any) -> Tensor:
        return self.gather(self.embedding_table, indices, 0)

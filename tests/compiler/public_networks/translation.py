"""The Transformer (Vaswani et al. 2017): encoder, decoder, smoothed labels, padding, a warm-up of the learning rate,
and a training step of its own with a scaled loss."""

import math
from typing import Any

import numpy as np

import mspc.common.dtype as mstype
import mspc.nn as nn
from mspc.common.initializer import Normal, initializer
from mspc.common.parameter import Parameter, ParameterTuple
from mspc.common.tensor import Tensor
from mspc.context import ParallelMode
from mspc.nn.wrap.grad_reducer import DistributedGradReducer
from mspc.ops import composite as C  # as public code
from mspc.ops import functional as F
from mspc.ops import operations as P
from mspc.parallel._utils import _get_device_num, _get_gradients_mean, _get_parallel_mode

VOCAB, WIDTH, HEADS, LAYERS, LENGTH = 32, 16, 2, 1, 6

grad_scale = C.MultitypeFuncGraph("grad_scale")


@grad_scale.register("Tensor", "Tensor")
def _unscaled(scale: Any, grad: Any) -> Any:
    return grad * F.cast(P.Reciprocal()(scale), F.dtype(grad))


_grad_overflow = C.MultitypeFuncGraph("_grad_overflow")


@_grad_overflow.register("Tensor")
def _overflow_of_a_gradient(grad: Any) -> Any:
    return P.FloatStatus()(grad)


def noam(steps: int, warmup: int, scale: float = 1.0) -> np.ndarray:
    """The rate of every step: it rises for `warmup` steps, then falls as the root of their number."""
    places = np.arange(1, steps + 1, dtype=np.float32)
    rates = scale * WIDTH**-0.5 * np.minimum(places**-0.5, places * warmup**-1.5)
    return rates.astype(np.float32)


def sinusoids(length: int, depth: int) -> np.ndarray:
    places = np.arange(length)[:, np.newaxis]
    scales = np.exp(-np.arange(depth // 2) * (math.log(10000.0) / (depth // 2 - 1)))[np.newaxis, :]
    return np.concatenate([np.sin(places * scales), np.cos(places * scales)], axis=1).astype(np.float32)


class EmbeddingLookup(nn.Cell):
    """(embeddings of words, the table), looked up in a flat list."""

    def __init__(self) -> None:
        super(EmbeddingLookup, self).__init__()  # noqa: UP008  # as public code
        self.embedding_table = Parameter(initializer(Normal(WIDTH**-0.5), [VOCAB, WIDTH]), name="embedding_table")
        self.expand = P.ExpandDims()
        self.gather = P.GatherV2()
        self.reshape = P.Reshape()
        self.shape = P.Shape()

    def construct(self, input_ids: Any) -> Any:
        input_shape = self.shape(input_ids)
        flat_ids = self.reshape(input_ids, (-1,))
        output = self.gather(self.embedding_table, flat_ids, 0)
        return self.reshape(output, input_shape + (WIDTH,)), self.embedding_table  # noqa: RUF005


class EmbeddingPostprocessor(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.scores_mul = Tensor([math.sqrt(float(WIDTH))], dtype=mstype.float32)
        self.multiply, self.add = P.Mul(), P.TensorAdd()
        self.dropout = nn.Dropout(keep_prob=1.0)
        self.position_embedding_table = Tensor(sinusoids(LENGTH, WIDTH), mstype.float32)
        self.expand_dims = P.ExpandDims()

    def construct(self, word_embeddings: Any) -> Any:
        output = self.multiply(word_embeddings, self.scores_mul)
        output = self.add(output, self.expand_dims(self.position_embedding_table, 0))
        return self.dropout(output)


class CreateAttentionMask(nn.Cell):
    """[batch, LENGTH, LENGTH]: 1 where a word that is no padding is looked at by one that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.cast, self.reshape, self.shape = P.Cast(), P.Reshape(), P.Shape()
        self.batch_matmul = P.BatchMatMul()

    def construct(self, input_mask: Any) -> Any:
        rows, length = self.shape(input_mask)
        right = self.cast(self.reshape(input_mask, (rows, 1, length)), mstype.float32)
        left = self.cast(self.reshape(input_mask, (rows, length, 1)), mstype.float32)
        return self.batch_matmul(left, right)


class MultiheadAttention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.query_layer = nn.Dense(WIDTH, WIDTH, has_bias=False).to_float(mstype.float32)
        self.key_layer = nn.Dense(WIDTH, WIDTH, has_bias=False).to_float(mstype.float32)
        self.value_layer = nn.Dense(WIDTH, WIDTH, has_bias=False).to_float(mstype.float32)
        self.out_layer = nn.Dense(WIDTH, WIDTH, has_bias=False).to_float(mstype.float32)
        self.matmul_trans_b, self.matmul = P.BatchMatMul(transpose_b=True), P.BatchMatMul()
        self.scores_mul = Tensor([1.0 / math.sqrt(float(self.size))], dtype=mstype.float32)
        self.multiply_data = Tensor([-10000.0], dtype=mstype.float32)
        self.multiply, self.add, self.sub = P.Mul(), P.TensorAdd(), P.Sub()
        self.reshape, self.transpose, self.trans_shape = P.Reshape(), P.Transpose(), (0, 2, 1, 3)
        self.softmax, self.softmax_cast = nn.Softmax(), P.Cast()
        self.expand_dims, self.cast = P.ExpandDims(), P.Cast()

    def heads(self, x: Any) -> Any:
        return self.transpose(self.reshape(x, (-1, LENGTH, HEADS, self.size)), self.trans_shape)

    def construct(self, from_tensor: Any, to_tensor: Any, attention_mask: Any) -> Any:
        from_2d, to_2d = self.reshape(from_tensor, (-1, WIDTH)), self.reshape(to_tensor, (-1, WIDTH))
        query, key = self.heads(self.query_layer(from_2d)), self.heads(self.key_layer(to_2d))
        value = self.heads(self.value_layer(to_2d))
        scores = self.multiply(self.matmul_trans_b(query, key), self.scores_mul)
        mask = self.expand_dims(attention_mask, 1)
        hidden = self.sub(self.cast(F.tuple_to_array((1.0,)), mstype.float32), self.cast(mask, mstype.float32))
        scores = self.add(self.multiply(hidden, self.multiply_data), scores)
        context = self.matmul(self.softmax(scores), value)
        context = self.reshape(self.transpose(context, self.trans_shape), (-1, WIDTH))
        return self.reshape(self.out_layer(context), (-1, LENGTH, WIDTH))


class FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Dense(WIDTH, 4 * WIDTH, activation="relu")
        self.conv2 = nn.Dense(4 * WIDTH, WIDTH)

    def construct(self, x: Any) -> Any:
        flat = P.Reshape()(x, (-1, WIDTH))
        return P.Reshape()(self.conv2(self.conv1(flat)), P.Shape()(x))


class Residual(nn.Cell):
    """x and what a layer makes of its norm."""

    def __init__(self, layer: nn.Cell) -> None:
        super().__init__()
        self.layer = layer
        self.layernorm = nn.LayerNorm((WIDTH,))
        self.dropout = nn.Dropout(keep_prob=1.0)
        self.use_dropout = False

    def construct(self, x: Any, *seen: Any) -> Any:
        read = self.layernorm(x)
        out = self.layer(read) if len(seen) == 0 else self.layer(read, *seen)
        if self.use_dropout:
            out = self.dropout(out)
        return x + out


class SelfAttention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention()

    def construct(self, x: Any, mask: Any) -> Any:
        return self.attention(x, x, mask)


class EncoderCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feedforward = Residual(SelfAttention()), Residual(FeedForward())

    def construct(self, x: Any, mask: Any) -> Any:
        return self.feedforward(self.attention(x, mask))


class DecoderCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = Residual(SelfAttention()), Residual(MultiheadAttention())
        self.feedforward = Residual(FeedForward())

    def construct(self, x: Any, mask: Any, encoded: Any, encoded_mask: Any) -> Any:
        return self.feedforward(self.cross_attention(self.self_attention(x, mask), encoded, encoded_mask))


class TransformerModel(nn.Cell):
    """Logs of the chances of every word of the target."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_lookup = EmbeddingLookup()
        self.postprocessor = EmbeddingPostprocessor()
        self.create_mask = CreateAttentionMask()
        self.encoder = nn.CellList([EncoderCell() for _ in range(LAYERS)])
        self.decoder = nn.CellList([DecoderCell() for _ in range(LAYERS)])
        self.encoder_norm, self.decoder_norm = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.future_mask = Tensor(np.tril(np.ones((LENGTH, LENGTH))), dtype=mstype.float32)
        self.project = P.MatMul(transpose_b=True)
        self.log_softmax = nn.LogSoftmax(axis=-1)
        self.expand, self.multiply = P.ExpandDims(), P.Mul()

    def construct(self, source_ids: Any, source_mask: Any, target_ids: Any, target_mask: Any) -> Any:
        x, table = self.embedding_lookup(source_ids)
        x = self.postprocessor(x)
        enc_mask = self.create_mask(source_mask)
        for layer in self.encoder:
            x = layer(x, enc_mask)
        encoded = self.encoder_norm(x)
        y, _ = self.embedding_lookup(target_ids)
        y = self.postprocessor(y)
        shown = self.multiply(self.create_mask(target_mask), self.expand(self.future_mask, 0))
        for layer in self.decoder:
            y = layer(y, shown, encoded, enc_mask)
        flat = P.Reshape()(self.decoder_norm(y), (-1, WIDTH))
        return self.log_softmax(self.project(flat, table))


class TransformerTrainingLoss(nn.Cell):
    """Cross entropy against smoothed labels: the word has 0.9, all others share the rest."""

    def __init__(self) -> None:
        super(TransformerTrainingLoss, self).__init__(auto_prefix=False)  # noqa: UP008
        self.on_value = Tensor(0.9, mstype.float32)
        self.off_value = Tensor(0.1 / float(VOCAB - 1), mstype.float32)
        self.reduce_sum, self.onehot = P.ReduceSum(), P.OneHot()
        self.reshape, self.last_idx, self.neg, self.cast = P.Reshape(), (-1,), P.Neg(), P.Cast()

    def construct(self, prediction_scores: Any, label_ids: Any, label_weights: Any) -> Any:
        wanted = self.onehot(self.reshape(label_ids, (-1,)), VOCAB, self.on_value, self.off_value)
        weights = self.cast(self.reshape(label_weights, (-1,)), mstype.float32)
        per_word = self.neg(self.reduce_sum(prediction_scores * wanted, self.last_idx))
        numerator = self.reduce_sum(weights * per_word, ())
        denominator = self.reduce_sum(weights, ()) + self.cast(F.tuple_to_array((1e-5,)), mstype.float32)
        return numerator / denominator


class TransformerNetworkWithLoss(nn.Cell):
    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.transformer, self.loss = TransformerModel(), TransformerTrainingLoss()
        self.cast = P.Cast()

    def construct(
        self, source_ids: Any, source_mask: Any, target_ids: Any, target_mask: Any, label_ids: Any, label_weights: Any
    ) -> Any:
        scores = self.transformer(source_ids, source_mask, target_ids, target_mask)
        return self.cast(self.loss(scores, label_ids, label_weights), mstype.float32)


class TransformerTrainOneStepWithLossScaleCell(nn.Cell):
    """The step, written out: scaled, reduced, unscaled, skipped by all where one has overflowed."""

    def __init__(self, network: Any, optimizer: Any, scale_update_cell: Any = None) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.network.add_flags(defer_inline=True)
        self.weights = ParameterTuple(network.trainable_params())
        self.optimizer = optimizer
        self.grad = C.GradOperation(get_by_list=True, sens_param=True)
        self.reducer_flag = False
        self.all_reduce = P.AllReduce()
        self.parallel_mode = _get_parallel_mode()
        if self.parallel_mode in [ParallelMode.DATA_PARALLEL, ParallelMode.HYBRID_PARALLEL]:
            self.reducer_flag = True
        self.grad_reducer = None
        if self.reducer_flag:
            self.grad_reducer = DistributedGradReducer(optimizer.parameters, _get_gradients_mean(), _get_device_num())
        self.is_distributed = self.parallel_mode != ParallelMode.STAND_ALONE
        self.cast = P.Cast()
        self.base = Tensor(1, mstype.float32)
        self.less_equal, self.reshape, self.addn = P.LessEqual(), P.Reshape(), P.AddN()
        self.hyper_map = C.HyperMap()
        self.loss_scale, self.loss_scaling_manager = None, scale_update_cell
        if scale_update_cell:
            scale = Tensor(scale_update_cell.get_loss_scale(), dtype=mstype.float32)
            self.loss_scale = Parameter(scale, name="loss_scale")

    def construct(
        self, source_eos_ids: Any, source_eos_mask: Any, target_sos_ids: Any, target_sos_mask: Any,
        target_eos_ids: Any, target_eos_mask: Any, sens: Any = None,
    ) -> Any:  # fmt: skip
        data = (source_eos_ids, source_eos_mask, target_sos_ids, target_sos_mask, target_eos_ids, target_eos_mask)
        weights = self.weights
        loss = self.network(*data)
        scaling_sens = self.loss_scale if sens is None else sens
        grads = self.grad(self.network, weights)(*data, self.cast(scaling_sens, mstype.float32))
        grads = self.hyper_map(F.partial(grad_scale, scaling_sens), grads)
        if self.reducer_flag:
            grads = self.grad_reducer(grads)
        flag_sum = self.addn(self.hyper_map(F.partial(_grad_overflow), grads))
        flag_sum = self.reshape(flag_sum, (()))
        if self.is_distributed:
            cond = self.less_equal(self.base, self.all_reduce(flag_sum))
        else:
            cond = self.less_equal(self.base, flag_sum)
        overflow = cond
        if sens is None:
            overflow = self.loss_scaling_manager(self.loss_scale, cond)
        if overflow:
            succ = False
        else:
            succ = self.optimizer(grads)
        ret = (loss, cond, scaling_sens)
        return F.depend(ret, succ)

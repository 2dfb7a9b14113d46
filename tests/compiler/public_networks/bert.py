"""BERT (Devlin et al. 2018) and a step of its pre-training: scaled loss, gradients unscaled and clipped one by one."""

from __future__ import annotations

import math
from typing import Any

import mspc.common.dtype as mstype
from mspc import Parameter, Tensor, nn
from mspc.common.initializer import TruncatedNormal, initializer
from mspc.ops import composite as C  # as public code
from mspc.ops import functional as F
from mspc.ops import operations as P

VOCAB, WIDTH, HEADS, LAYERS, LENGTH = 32, 16, 2, 1, 8

clip_grad = C.MultitypeFuncGraph("clip_grad")


@clip_grad.register("Number", "Number", "Tensor")
def _clip_grad(clip_type: Any, clip_value: Any, grad: Any) -> Any:
    if clip_type not in (0, 1):
        return grad
    dt = F.dtype(grad)
    if clip_type == 0:
        low, high = F.cast(F.tuple_to_array((-clip_value,)), dt), F.cast(F.tuple_to_array((clip_value,)), dt)
        return C.clip_by_value(grad, low, high)
    return nn.ClipByNorm()(grad, F.cast(F.tuple_to_array((clip_value,)), dt))


grad_scale = C.MultitypeFuncGraph("grad_scale")


@grad_scale.register("Tensor", "Tensor")
def tensor_grad_scale(scale: Any, grad: Any) -> Any:
    return grad * F.cast(P.Reciprocal()(scale), F.dtype(grad))


class EmbeddingPostprocessor(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.token_type = nn.Embedding(2, WIDTH, use_one_hot=True, embedding_table=TruncatedNormal(0.02))
        self.position = Parameter(initializer(TruncatedNormal(0.02), (LENGTH, WIDTH)), name="position")
        self.layernorm = nn.LayerNorm((WIDTH,))
        self.add = P.Add()

    def construct(self, token_type_ids: Any, word_embeddings: Any) -> Any:
        x = self.add(word_embeddings, self.token_type(token_type_ids))
        return self.layernorm(self.add(x, F.expand_dims(self.position, 0)))


class SelfAttention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        init = TruncatedNormal(0.02)
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH, weight_init=init) for _ in "qkv")
        self.matmul_trans_b = P.BatchMatMul(transpose_b=True)
        self.matmul = P.BatchMatMul()
        self.softmax = nn.Softmax()
        self.transpose, self.reshape = P.Transpose(), P.Reshape()
        self.multiply_data = -10000.0

    def construct(self, tensor: Any, attention_mask: Any) -> Any:
        shape, order = (-1, LENGTH, HEADS, self.size), (0, 2, 1, 3)
        flat = self.reshape(tensor, (-1, WIDTH))
        query, key, value = (
            self.transpose(self.reshape(dense(flat), shape), order) for dense in (self.query, self.key, self.value)
        )
        scores = self.matmul_trans_b(query, key) * (1.0 / math.sqrt(float(self.size)))
        shown = P.Cast()(F.expand_dims(attention_mask, 1), mstype.float32)
        adder = (F.tuple_to_array((1.0,)) - shown) * self.multiply_data
        mixed = self.matmul(self.softmax(scores + adder), value)
        return self.reshape(self.transpose(mixed, order), (-1, WIDTH))


class EncoderCell(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.output = nn.Dense(WIDTH, WIDTH, weight_init=TruncatedNormal(0.02))
        self.intermediate = nn.Dense(WIDTH, 4 * WIDTH, weight_init=TruncatedNormal(0.02), activation="gelu")
        self.dense = nn.Dense(4 * WIDTH, WIDTH, weight_init=TruncatedNormal(0.02))
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))

    def construct(self, hidden: Any, mask: Any) -> Any:
        flat = F.reshape(hidden, (-1, WIDTH))
        x = self.norm1(flat + self.output(self.attention(hidden, mask)))
        return F.reshape(self.norm2(x + self.dense(self.intermediate(x))), (-1, LENGTH, WIDTH))


class BertPreTraining(nn.Cell):
    """The sum of the losses of the words left out and of the next sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCAB, WIDTH, embedding_table=TruncatedNormal(0.02))
        self.post = EmbeddingPostprocessor()
        self.layers = nn.CellList([EncoderCell() for _ in range(LAYERS)])
        self.pooler = nn.Dense(WIDTH, WIDTH, weight_init=TruncatedNormal(0.02), activation="tanh")
        self.transform = nn.Dense(WIDTH, WIDTH, weight_init=TruncatedNormal(0.02), activation="gelu")
        self.layernorm = nn.LayerNorm((WIDTH,))
        self.output_bias = Parameter(initializer("zero", (VOCAB,)), name="output_bias")
        self.next_sentence = nn.Dense(WIDTH, 2, weight_init=TruncatedNormal(0.02))
        self.gather, self.matmul = P.Gather(), P.MatMul(transpose_b=True)
        self.log_softmax, self.onehot = nn.LogSoftmax(), P.OneHot()
        self.on_value, self.off_value = Tensor(1.0, mstype.float32), Tensor(0.0, mstype.float32)
        self.reduce_sum, self.reduce_mean = P.ReduceSum(), P.ReduceMean()

    def construct(self, ids: Any, mask: Any, types: Any, label: Any, places: Any, words: Any, weights: Any) -> Any:
        x = self.post(types, self.word(ids))
        attention = F.expand_dims(mask, 1) * F.ones((1, LENGTH, 1), mstype.float32)
        for layer in self.layers:
            x = layer(x, attention)
        batch = F.shape(ids)[0]
        offsets = F.reshape(F.cast(F.tuple_to_array(F.make_range(batch)), mstype.int32) * LENGTH, (-1, 1))
        picked = self.gather(F.reshape(x, (-1, WIDTH)), F.reshape(places + offsets, (-1,)), 0)
        hidden = self.layernorm(self.transform(picked))
        logits = self.matmul(hidden, self.word.embedding_table) + self.output_bias
        wanted = self.onehot(F.reshape(words, (-1,)), VOCAB, self.on_value, self.off_value)
        losses = -self.reduce_sum(self.log_softmax(logits) * wanted, (-1,))
        weights = F.reshape(weights, (-1,))
        masked = self.reduce_sum(losses * weights, ()) / (self.reduce_sum(weights, ()) + 1e-5)
        pooled = self.pooler(F.reshape(x[:, 0:1, :], (-1, WIDTH)))
        sentence = self.onehot(F.reshape(label, (-1,)), 2, self.on_value, self.off_value)
        following = self.log_softmax(self.next_sentence(pooled)) * sentence
        return masked - self.reduce_mean(self.reduce_sum(following, (-1,)))


class PreTrainingStep(nn.TrainOneStepWithLossScaleCell):
    """The step: gradients divided by the scale, each clipped to a norm of 1, unless one has overflowed."""

    def __init__(self, network: Any, optimizer: Any, scale_update_cell: Any) -> None:
        super().__init__(network, optimizer, scale_update_cell)
        self.cast = P.Cast()
        self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), dtype=mstype.float32), name="loss_scale")

    def construct(self, ids: Any, mask: Any, types: Any, label: Any, places: Any, words: Any, weights: Any) -> Any:
        given = (ids, mask, types, label, places, words, weights)
        loss = self.network(*given)
        status, scaling_sens = self.start_overflow_check(loss, self.loss_scale)
        grads = self.grad(self.network, self.weights)(*given, self.cast(scaling_sens, mstype.float32))
        grads = self.hyper_map(F.partial(grad_scale, scaling_sens), grads)
        grads = self.hyper_map(F.partial(clip_grad, 1, 1.0), grads)
        cond = self.get_overflow_status(status, grads)
        overflow = self.loss_scaling_manager(self.loss_scale, cond)
        if not overflow:
            self.optimizer(grads)
        return loss

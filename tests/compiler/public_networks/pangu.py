"""A language model after PanGu-alpha (Zeng et al. 2021): layers of the library, on top of them one whose queries are
embeddings of places; layers are placed by a function, updates shared by replicas, gradients clipped by their norm."""

from typing import Any

import numpy as np

import mspc.common.dtype as mstype
import mspc.nn as nn
from mspc.common.initializer import TruncatedNormal
from mspc.common.parameter import Parameter
from mspc.common.tensor import Tensor
from mspc.nn.transformer import AttentionMask, VocabEmbedding
from mspc.nn.transformer.layers import _LayerNorm
from mspc.nn.transformer.loss import CrossEntropyLoss
from mspc.nn.transformer.transformer import TransformerEncoder, TransformerEncoderLayer
from mspc.nn.wrap.loss_scale import TrainOneStepWithLossScaleCell
from mspc.ops import composite as C  # as public code
from mspc.ops import functional as F
from mspc.ops import operations as P

VOCAB, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 16, 4, 2, 8, 4
END = VOCAB - 1


def set_parallel_configure_for_layer(
    network: Any, layer_id: int, offset: int, parallel_config: Any, layers: int
) -> None:
    """Where a layer belongs: its stage, with which others its gradients travel, what is computed again."""
    per_stage = max(int((layers + offset) / parallel_config.pipeline_stage), 1)
    network.pipeline_stage = min((layer_id + offset) // per_stage, parallel_config.pipeline_stage - 1)
    apart = max(int((layers + 1) / parallel_config.gradient_aggregation_group), 1)
    network.set_comm_fusion(int((layer_id + offset) / apart) + 1)
    if parallel_config.recompute.recompute:
        network.recompute(recompute_slice_activation=parallel_config.recompute.recompute_slice_activation)


class EmbeddingLayer(nn.Cell):
    def __init__(self, config: Any) -> None:
        super(EmbeddingLayer, self).__init__()  # noqa: UP008  # as public code
        parallel = config.embedding_dp_mp_config
        self.word_embedding = VocabEmbedding(VOCAB, WIDTH, param_init=TruncatedNormal(0.3), parallel_config=parallel)
        self.position_embedding = VocabEmbedding(
            LENGTH, WIDTH, param_init=TruncatedNormal(0.3), parallel_config=parallel
        )
        self.add = P.Add().shard(((config.data_parallel, 1, 1), (config.data_parallel, 1, 1)))
        self.dropout = nn.Dropout(1.0)
        self.dropout.dropout.shard(((config.data_parallel, 1, 1),))

    def construct(self, input_ids: Any, input_position: Any) -> Any:
        word_embedding, word_table = self.word_embedding(input_ids)
        position_embedding, _ = self.position_embedding(input_position)
        return self.dropout(self.add(word_embedding, position_embedding)), word_table


class QueryLayer(TransformerEncoderLayer):
    """A layer whose queries come from outside."""

    def construct(  # type: ignore[override]
        self, x: Any, query_vector: Any, input_mask: Any, init_reset: Any = True, batch_valid_length: Any = None
    ) -> Any:
        input_x = F.cast(self.layernorm1(x), self.dtype)
        attention, layer_present = self.attention(
            query_vector, input_x, input_x, input_mask, self.key_past, self.value_past, batch_valid_length
        )
        x = self.add(input_x, attention) if self.post_layernorm_residual else self.add(x, attention)
        output_x = F.cast(self.layernorm2(x), self.dtype)
        mlp_logit = self.output(output_x)
        output = self.add(output_x, mlp_logit) if self.post_layernorm_residual else self.add(x, mlp_logit)
        return output, layer_present


class PanguHead(nn.Cell):
    def __init__(self, config: Any) -> None:
        super().__init__()
        dp, mp = config.data_parallel, 1 if config.vocab_emb_dp else config.model_parallel
        self.matmul = P.MatMul(transpose_b=True).shard(((dp, 1), (mp, 1)))

    def construct(self, state: Any, embed: Any) -> Any:
        return self.matmul(P.Reshape()(state, (-1, WIDTH)), P.Cast()(embed, state.dtype))


class PanguModel(nn.Cell):
    def __init__(self, config: Any, dtype: Any) -> None:
        super().__init__()
        common = {"attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0, "hidden_act": "fast_gelu"}
        self.embedding = EmbeddingLayer(config)
        self.embedding.pipeline_stage = 0
        self.embedding.set_comm_fusion(1)
        self.blocks = TransformerEncoder(
            num_layers=LAYERS - 1, batch_size=BATCH, hidden_size=WIDTH, ffn_hidden_size=4 * WIDTH, num_heads=HEADS,
            seq_length=LENGTH, lambda_func=set_parallel_configure_for_layer, param_init_type=mstype.float32,
            use_past=False, parallel_config=config, compute_dtype=dtype, **common,
        ).blocks  # fmt: skip
        self.layernorm = _LayerNorm((WIDTH,)).to_float(mstype.float32)
        self.layernorm.shard(((config.data_parallel, 1, 1),))
        self.layernorm.pipeline_stage = config.pipeline_stage - 1
        self.top_query_embedding = VocabEmbedding(
            LENGTH, WIDTH, param_init=TruncatedNormal(0.3), parallel_config=config.embedding_dp_mp_config
        )
        self.top_query_layer = QueryLayer(
            batch_size=BATCH, hidden_size=WIDTH, ffn_hidden_size=4 * WIDTH, num_heads=HEADS, seq_length=LENGTH,
            param_init_type=mstype.float32, use_past=False, parallel_config=config.dp_mp_config, compute_dtype=dtype,
            **common,
        )  # fmt: skip
        if config.recompute.recompute:
            self.top_query_layer.recompute()
        self.top_query_layer.pipeline_stage = config.pipeline_stage - 1

    def construct(self, input_ids: Any, input_position: Any, attention_mask: Any) -> Any:
        embed, word_table = self.embedding(input_ids, input_position)
        hidden_state = P.Cast()(embed, mstype.float32)
        for i in range(LAYERS - 1):
            hidden_state, _ = self.blocks[i](hidden_state, attention_mask)
        hidden_state = self.layernorm(hidden_state)
        top_query_hidden_states, _ = self.top_query_embedding(input_position)
        encoder_output, _ = self.top_query_layer(hidden_state, top_query_hidden_states, attention_mask)
        return encoder_output, word_table


class PanguWithLoss(nn.Cell):
    """The loss of the next word. Words behind one that ends a text do not look beyond it."""

    def __init__(self, config: Any, dtype: Any = mstype.float32) -> None:
        super().__init__(auto_prefix=False)
        dp = config.data_parallel
        self.network, self.head = PanguModel(config, dtype), PanguHead(config)
        self.loss = CrossEntropyLoss(config.dp_mp_config)
        self.get_attention_mask = AttentionMask(LENGTH)
        self.slice, self.slice2 = P.StridedSlice().shard(((dp, 1),)), P.StridedSlice().shard(((dp, 1),))
        self.not_equal = P.NotEqual().shard(((dp, 1), ()))
        self.batch_slice = P.StridedSlice().shard(((dp, 1),))
        self.position = Tensor(np.tile(np.arange(LENGTH), (BATCH, 1)), mstype.int32)

    def construct(self, input_ids: Any) -> Any:
        tokens = self.slice(input_ids, (0, 0), (BATCH, -1), (1, 1))
        input_mask = F.cast(self.not_equal(tokens, END), mstype.float32)
        hidden, table = self.network(tokens, self.position, self.get_attention_mask(input_mask))
        logits = self.head(hidden, table)
        labels = P.Reshape()(self.slice2(input_ids, (0, 1), (BATCH, LENGTH + 1), (1, 1)), (-1,))
        return self.loss(F.cast(logits, mstype.float32), labels, P.Reshape()(input_mask, (-1,)))


get_square_sum = C.MultitypeFuncGraph("get_square_sum")


@get_square_sum.register("Tensor")
def _square_sum(grad: Any) -> Any:
    return F.expand_dims(F.cast(P.ReduceSum(False)(F.square(grad), ()), mstype.float32), 0)


apply_global_norm = C.MultitypeFuncGraph("apply_global_norm")


@apply_global_norm.register("Tensor", "Tensor", "Tensor")
def _apply_global_norm(clip_norm: Any, global_norm: Any, grad: Any) -> Any:
    return F.cast(grad * clip_norm / global_norm, F.dtype(grad))


grad_scale = C.MultitypeFuncGraph("grad_scale")


@grad_scale.register("Tensor", "Tensor")
def _scaled(scale: Any, grad: Any) -> Any:
    return F.cast(grad, mstype.float32) * P.Reciprocal()(scale)


class ClipByGlobalNorm(nn.Cell):
    """(gradients of a norm of `clip_norm` at most, the norm that they had)."""

    def __init__(self, clip_norm: float = 0.5) -> None:
        super().__init__()
        self.clip_norm = Tensor([clip_norm], mstype.float32)
        self.hyper_map = C.HyperMap()
        self.greater_equal = P.GreaterEqual()

    def construct(self, grads: Any) -> Any:
        norm = P.Sqrt()(F.addn(self.hyper_map(get_square_sum, grads)))
        cond = self.greater_equal(norm, self.clip_norm)
        norm = F.select(cond, norm, self.clip_norm)
        return self.hyper_map(F.partial(apply_global_norm, self.clip_norm, norm), grads), norm


class PanguTrainOneStep(TrainOneStepWithLossScaleCell):
    """The step: gradients divided by the scale and clipped together, unless one has overflowed."""

    def __init__(self, network: Any, optimizer: Any, scale_update_cell: Any) -> None:
        super().__init__(network, optimizer, scale_update_cell)
        self.clip = ClipByGlobalNorm()
        self.cast = P.Cast()
        self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), mstype.float32), name="loss_scale")

    @C.add_flags(has_effect=True)
    def construct(self, input_ids: Any) -> Any:  # type: ignore[override]
        loss = self.network(input_ids)
        scaling_sens = self.loss_scale
        status, scaling_sens = self.start_overflow_check(loss, scaling_sens)
        scaling_sens_filled = C.ones_like(loss) * F.cast(scaling_sens, F.dtype(loss))
        grads = self.grad(self.network, self.weights)(input_ids, scaling_sens_filled)
        grads = self.hyper_map(F.partial(grad_scale, scaling_sens), grads)
        grads, _ = self.clip(grads)
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            loss = F.depend(loss, self.optimizer(grads))
        return loss

"""`mindspore.parallel._transformer`: transformers that are sharded over rows of the batch and over heads."""

from __future__ import annotations

from mspc.api.parallel.transformer.attention import AttentionMask, MultiHeadAttention
from mspc.api.parallel.transformer.blocks import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    _get_lambda_func,  # noqa: F401  # for scripts
)
from mspc.api.parallel.transformer.config import (
    EmbeddingOpParallelConfig,
    MoEConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
    default_dpmp_config,  # noqa: F401  # for scripts
    default_embedding_parallel_config,  # noqa: F401  # for scripts
    default_moe_config,  # noqa: F401  # for scripts
    default_transformer_config,  # noqa: F401  # for scripts
)
from mspc.api.parallel.transformer.layers import FeedForward, VocabEmbedding
from mspc.api.parallel.transformer.loss import CrossEntropyLoss

__all__ = [
    "AttentionMask", "CrossEntropyLoss", "EmbeddingOpParallelConfig", "FeedForward", "MoEConfig", "MultiHeadAttention",
    "OpParallelConfig", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer", "TransformerOpParallelConfig", "TransformerRecomputeConfig", "VocabEmbedding",
]  # fmt: skip

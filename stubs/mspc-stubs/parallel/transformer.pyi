# Made by `make goldens`.
from mspc.api.parallel.transformer.attention import AttentionMask as AttentionMask
from mspc.api.parallel.transformer.loss import CrossEntropyLoss as CrossEntropyLoss
from mspc.api.parallel.transformer.config import EmbeddingOpParallelConfig as EmbeddingOpParallelConfig
from mspc.api.parallel.transformer.layers import FeedForward as FeedForward
from mspc.api.parallel.transformer.config import MoEConfig as MoEConfig
from mspc.api.parallel.transformer.attention import MultiHeadAttention as MultiHeadAttention
from mspc.api.parallel.transformer.config import OpParallelConfig as OpParallelConfig
from mspc.api.parallel.transformer.blocks import Transformer as Transformer
from mspc.api.parallel.transformer.blocks import TransformerDecoder as TransformerDecoder
from mspc.api.parallel.transformer.blocks import TransformerDecoderLayer as TransformerDecoderLayer
from mspc.api.parallel.transformer.blocks import TransformerEncoder as TransformerEncoder
from mspc.api.parallel.transformer.blocks import TransformerEncoderLayer as TransformerEncoderLayer
from mspc.api.parallel.transformer.config import TransformerOpParallelConfig as TransformerOpParallelConfig
from mspc.api.parallel.transformer.config import TransformerRecomputeConfig as TransformerRecomputeConfig
from mspc.api.parallel.transformer.layers import VocabEmbedding as VocabEmbedding

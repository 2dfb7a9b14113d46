"""Sizes of a model and of the run that trains it: the description that every reader of configurations makes."""

from __future__ import annotations

from dataclasses import field, replace

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of an attention. groups: key and value heads. queries, values: width of a head of queries and keys, and of
    values. query_rank, key_rank, rotary: latent widths of multi-latent attention, 0 in other attentions. cross: keys
    come from an encoder of `keys` tokens. window: keys that a query sees, 0 for all."""

    heads: int
    groups: int
    queries: int
    values: int
    query_rank: int = 0
    key_rank: int = 0
    rotary: int = 0
    rotated: bool = False
    normalized: bool = False
    causal: bool = True
    cross: bool = False
    keys: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class MambaShape:
    """Sizes of a Mamba-2 mixer: heads, width of a head, width of a state, groups of B and C, width of the convolution,
    and tokens of a chunk of the scan."""

    heads: int
    head: int
    state: int = 128
    groups: int = 8
    window: int = 4
    chunk: int = 128


@dataclass(frozen=True, slots=True)
class FeedForwardShape:
    """Sizes of a feed-forward layer, or of its experts. width: hidden width of one expert. experts: 0 in a dense layer.
    shared: hidden width of the shared experts. grouped: the experts' matmuls run as one kernel. routing: "loss" if an
    auxiliary loss makes it even, "bias" if a bias in steps of 1e-3 does, "forced" if it is even by definition. latent:
    width to which rows are projected before they are sent to experts, 0 for none. clamped: kernels of their own clamp
    the activation's input."""

    width: int
    gated: bool = False
    experts: int = 0
    choices: int = 1
    shared: int = 0
    grouped: bool = True
    dispatcher: str = "allgather"
    routing: str = "loss"
    latent: int = 0
    clamped: bool = False

    def rows(self, hidden: int) -> int:
        """Return the width of the rows that an expert reads."""
        return self.latent or hidden


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """One layer of a model. sequence: tokens of a sample, before context parallelism. mixers: attention or Mamba."""

    sequence: int
    mixers: tuple[AttentionShape | MambaShape, ...] = ()
    feed: FeedForwardShape | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a whole model. layers: in order, encoder first. vocabulary: padded rows of the embedding. positions:
    rows of a learned position embedding, or 0. types: rows of a token type embedding. tied: the output layer is the
    embedding. heads: extra layers of width hidden² (BERT's pooler and language head). predictions: layers that predict
    further tokens (MTP). encoders: number of layers of the encoder."""

    family: str
    hidden: int
    vocabulary: int
    layers: tuple[ModelLayer, ...]
    sequence: int
    positions: int = 0
    types: int = 0
    tied: bool = True
    biased: bool = True
    query_biased: bool = False
    rms: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    heads: int = 0
    predictions: int = 0
    encoders: int = 0


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Values that the backward pass computes again. granularity: "", "selective" or "full". modules: of selective
    recomputation. block: whole layers at the start of each chunk are recomputed, otherwise groups of `layers` layers.
    offloaded: modules whose inputs are stored in host memory. host_layers: first layers whose values all are."""

    granularity: str = ""
    modules: frozenset[str] = frozenset()
    block: bool = False
    layers: int = 1
    offloaded: frozenset[str] = frozenset()
    host_layers: int = 0


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A model with the settings that decide memory and time.

    ranks: all ranks. tensor, pipeline, context, expert, expert_tensor: degrees. chunks: model chunks of a stage.
    pipeline_inner: stages are nearer than replicas. group: micro-batches that a chunk processes in a row. stages:
    layers of each chunk of each stage (stage, chunk), empty for an even split. sharding: "none", "states",
    "gradients" or "parameters" are divided over data-parallel ranks; `divided` ranks share them (0: all), and
    groups of these the states if `outer_states` is true. parameter, gradient, state: bytes of an element. eight:
    recipe of 8-bit matmuls or ""; eight_attention, eight_output: attention and the output layer are in 8 bits, too;
    half_layers: the first and the last layers, whose matmuls stay in half precision; precisions: modules whose
    matmuls have another recipe ("" for half precision), by names of `module_parameters`; gathered_operands: weights
    are stored and gathered in 8 or 4 bits. fused_gradients: weight gradients are added in the matmul. loss:
    "plain", "native" or "te". backend: "fused", "flash", "unfused" or "local". library: "te" or "local" kernels.
    masked: the data loader makes an attention mask. deferred_embedding: micro-batches whose logits wait for the
    output layer's weight gradient. frozen: elements of frozen modules beside the model, whose own weights are
    frozen, too, if it is not 0; they are loaded in Float32. reserved: bytes that other parts of the program hold.
    widths: widths of an elastic model, whose values are multiplied by a mask for each of them, or 0. fused_experts:
    one kernel computes the matmuls and the activation of experts. graphs: modules whose kernels CUDA graphs start:
    "attn", "mamba", "moe_router", "moe_preprocess", or "all". software: years from the trainer's release of April
    2026 to this one.
    """

    model: ModelShape
    ranks: int
    micro_batch: int
    global_batch: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    chunks: int = 1
    pipeline_inner: bool = False
    group: int = 0
    stages: tuple[tuple[tuple[int, ...], ...], ...] = ()
    first_layers: int = 0
    last_layers: int = 0
    sequence_parallel: bool = False
    sharding: str = "none"
    divided: int = 0
    outer_states: bool = False
    parameter: int = 2
    gradient: int = 4
    state: int = 12
    eight: str = ""
    eight_attention: bool = False
    eight_output: bool = False
    half_layers: tuple[int, int] = (0, 0)
    precisions: tuple[tuple[str, str], ...] = ()
    gathered_operands: bool = False
    fused_gradients: bool = True
    loss: str = "plain"
    backend: str = "fused"
    library: str = "te"
    fused_rotary: bool = True
    masked: bool = True
    overlapped_gradients: bool = False
    overlapped_parameters: bool = False
    overlapped_tensor: bool = False
    overlapped_experts: bool = False
    fused_experts: bool = False
    deferred_embedding: int = 0
    frozen: int = 0
    reserved: int = 0
    widths: int = 0
    software: float = 0.0
    graphs: frozenset[str] = frozenset()
    recomputation: Recomputation = field(default_factory=Recomputation)

    @property
    def data(self) -> int:
        """Number of data-parallel ranks, at least 1."""
        return max(1, self.ranks // (self.tensor * self.pipeline * self.context))

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on each data-parallel rank."""
        return max(1, self.global_batch // (self.micro_batch * self.data))

    @property
    def rows(self) -> int:
        """Ranks over which the tokens between tensor-parallel regions are divided."""
        return self.tensor if self.sequence_parallel else 1

    def at_layer(self, number: int) -> TrainingRun:
        """Return the run with the precision of one layer."""
        first, last = self.half_layers
        inside = first <= number < len(self.model.layers) - last
        return self if inside or not self.eight else replace(self, eight="", eight_attention=False)

    def tokens(self, sequence: int) -> int:
        """Return the tokens of one micro-batch on a rank outside of sequence-parallel regions."""
        return self.micro_batch * sequence // self.context

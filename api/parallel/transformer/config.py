"""These objects say how the cells of a Transformer are sharded."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell_arguments import flag, positive
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ops.operator_arguments import describe


class OpParallelConfig:
    """data_parallel: into how many slices rows are sharded. model_parallel: the same of heads and of what lies inside
    a feed-forward network."""

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1) -> None:
        self.data_parallel = positive("OpParallelConfig", "data_parallel", data_parallel)
        self.model_parallel = positive("OpParallelConfig", "model_parallel", model_parallel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpParallelConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.data_parallel, self.model_parallel))


class EmbeddingOpParallelConfig(OpParallelConfig):
    """vocab_emb_dp: the table is replicated; otherwise its rows are sharded into model_parallel slices."""

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1, vocab_emb_dp: bool = True, **more: Any) -> None:
        super().__init__(data_parallel, model_parallel)
        unused("EmbeddingOpParallelConfig", more, {"use_seq_parallel": False, "select_recompute": False})
        self.vocab_emb_dp = flag("EmbeddingOpParallelConfig", "vocab_emb_dp", vocab_emb_dp)

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    __hash__ = OpParallelConfig.__hash__


class TransformerRecomputeConfig:
    """recompute: layers are computed again for their gradients. The other options are those of `Cell.recompute`."""

    def __init__(
        self, recompute: bool = False, parallel_optimizer_comm_recompute: bool = False, mp_comm_recompute: bool = True,
        recompute_slice_activation: bool = False,
    ) -> None:  # fmt: skip
        name = "TransformerRecomputeConfig"
        self.recompute = flag(name, "recompute", recompute)
        self.parallel_optimizer_comm_recompute = flag(
            name, "parallel_optimizer_comm_recompute", parallel_optimizer_comm_recompute
        )
        self.mp_comm_recompute = flag(name, "mp_comm_recompute", mp_comm_recompute)
        self.recompute_slice_activation = flag(name, "recompute_slice_activation", recompute_slice_activation)

    @property
    def options(self) -> dict[str, bool]:
        """What a layer's `recompute` is called with."""
        return {key: value for key, value in vars(self).items() if key != "recompute"}


class TransformerOpParallelConfig:
    """How a Transformer is sharded, encoder and decoder alike.

    data_parallel, model_parallel, vocab_emb_dp: as in `EmbeddingOpParallelConfig`. recompute: whether layers are
    computed again for their gradients, or a `TransformerRecomputeConfig`. The other arguments must stay at their
    defaults, or change nothing in the cells here, as a warning says; a script's own cells may read `use_seq_parallel`.

    Raises:
        TypeError, ValueError: an argument is something else, or asks for several experts.
    """

    def __init__(
        self, data_parallel: int = 1, model_parallel: int = 1, expert_parallel: int = 1, pipeline_stage: int = 1,
        micro_batch_num: int = 1, recompute: Any = False, optimizer_shard: bool = False,
        gradient_aggregation_group: int = 4, vocab_emb_dp: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        name = "TransformerOpParallelConfig"
        self.data_parallel = positive(name, "data_parallel", data_parallel)
        self.model_parallel = positive(name, "model_parallel", model_parallel)
        self.expert_parallel = positive(name, "expert_parallel", expert_parallel)
        self.pipeline_stage = positive(name, "pipeline_stage", pipeline_stage)
        if self.expert_parallel > 1:
            raise ApiValueError(f"{name}: expert_parallel must be 1: mixtures of experts are not supported yet")
        self.micro_batch_num = positive(name, "micro_batch_num", micro_batch_num)
        self.vocab_emb_dp = flag(name, "vocab_emb_dp", vocab_emb_dp)
        if isinstance(recompute, bool):
            recompute = TransformerRecomputeConfig(recompute)
        if not isinstance(recompute, TransformerRecomputeConfig):
            raise ApiTypeError(f"{name}: recompute must be a bool or a TransformerRecomputeConfig, not {recompute!r}")
        self.recompute = recompute
        self.optimizer_shard = optimizer_shard
        self.gradient_aggregation_group = gradient_aggregation_group
        given = {"optimizer_shard": optimizer_shard, "gradient_aggregation_group": gradient_aggregation_group}
        self.use_seq_parallel = more.get("use_seq_parallel", False)
        unused(name, given | more, {
            "optimizer_shard": False, "gradient_aggregation_group": 4, "use_seq_parallel": False,
            "select_recompute": False, "context_parallel": 1,
        })  # fmt: skip

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        """What layers need of it."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    @property
    def embedding_dp_mp_config(self) -> EmbeddingOpParallelConfig:
        """What the embedding needs of it."""
        return EmbeddingOpParallelConfig(self.data_parallel, self.model_parallel, self.vocab_emb_dp)

    moe_parallel_config = dp_mp_config


class MoEConfig:
    """A mixture of experts; only its default, one expert, is built.

    Raises:
        ValueError: expert_num is greater.
    """

    def __init__(
        self, expert_num: int = 1, capacity_factor: float = 1.1, aux_loss_factor: float = 0.05,
        num_experts_chosen: int = 1, **more: Any,
    ) -> None:  # fmt: skip
        self.expert_num = positive("MoEConfig", "expert_num", expert_num)
        if self.expert_num > 1:
            raise ApiValueError("MoEConfig: expert_num must be 1: mixtures of experts are not supported yet")
        self.capacity_factor, self.aux_loss_factor = capacity_factor, aux_loss_factor
        self.num_experts_chosen = num_experts_chosen
        unused("MoEConfig", more, {"expert_group_size": None, "group_wise_a2a": False, "comp_comm_parallel": False,
                                   "comp_comm_parallel_degree": 2, "enable_sdrop": False, "use_fused_ops_topkrouter":
                                   False, "router_type": "TopkRouterV1"})  # fmt: skip


def unused(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Say what of `given` changes nothing.

    Raises:
        TypeError: there is no such argument.
    """
    for key, value in given.items():
        if key not in defaults:
            raise ApiTypeError(f"{name} has no argument {key!r}")
        if value != defaults[key]:
            say_once(f"{name} {key}", f"{place_of_caller()}{name}({key}={value!r}) changes nothing here")


def checked_config(name: str, config: Any, kind: type) -> Any:
    """`config`, which must be of a kind, or what this kind is made from.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(config, TransformerOpParallelConfig) and kind is not TransformerOpParallelConfig:
        config = config.embedding_dp_mp_config if kind is EmbeddingOpParallelConfig else config.dp_mp_config
    if not isinstance(config, kind):
        raise ApiTypeError(f"{name}: parallel_config must be of type {kind.__name__}, not {describe(config)}")
    return config


def divides(name: str, what: str, number: int, parts: int) -> None:
    """Raises ValueError where a number of things cannot be shared out."""
    if number % parts:
        raise ApiValueError(f"{name}: {what} {number} must be a multiple of model_parallel {parts}")


default_dpmp_config = OpParallelConfig()
default_embedding_parallel_config = EmbeddingOpParallelConfig()
default_moe_config = MoEConfig()
default_transformer_config = TransformerOpParallelConfig()

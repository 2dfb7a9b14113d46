"""Settings a compile depends on besides the program: ranks, mode, how data arrive. Frozen; passed, never global."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspc.ir.diagnostics import Location, MspcError, told_at
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.types import TensorType
from mspc.mindspore_api.checks import TABLES
from mspc.mindspore_api.context import FrozenContext
from mspc.mindspore_api.setting_kind import Places, first_place
from mspc.mindspore_api.settings import SHARDED, compiled_settings
from mspc.passes.lib.choices import Terms

if TYPE_CHECKING:
    from mspc.plans.files.plan_file import StagePlan

_Attributes = make_dataclass(
    "_Attributes",
    [(name, Any, s.attribute_of(getattr(FrozenContext, s.frozen_name))) for name, s in compiled_settings().items()],
    init=False, repr=False, eq=False, frozen=True, kw_only=True, namespace={"__doc__": "Settings."},
)  # fmt: skip  # `Config` has these methods for all fields


_DATA = ("dataset_strategy", "full_batch")
"""Settings that determine how data arrive."""
_SHARD_SIZE = ("parallel_optimizer_config['optimizer_weight_shard_size']", "optimizer_weight_shard_size")
STRATEGIES_FROM = (
    "strategy_ckpt_config['operator_load_file']", "strategy_ckpt_config['load_file']", "strategy_ckpt_load_file",
)  # fmt: skip
"""Settings that name a strategy file for operators, in order of precedence."""
_NONE = Terms()


@dataclass(frozen=True)
class Config(_Attributes):
    """Settings of one compile. Besides the fields below it has those of `compiled_settings`, which passes read from the
    graph:

    gradients_mean: in data parallel mode, divide summed gradients by the number of ranks.
    parallel_optimizer, parallel_optimizer_threshold (KiB), optimizer_weight_shard_size: replicas of a parameter share
    its update (`enable_parallel_optimizer`).
    gradient_bucket: bytes of gradients whose reductions are fused into one collective; 0: one collective each
    (`comm_fusion`).
    search_mode: automatic mode searches the layouts of all operators at once: "dynamic_programming" finds the best,
    "recursive_programming" is fast; "": layouts propagate from the configured operators.
    gradient_fp32_sync: gradients of Float32 parameters are summed over ranks in Float32, not in the half precision in
    which they were computed.
    force_fp32_communication: half-precision values are summed over ranks in Float32, including gradients of
    half-precision parameters.

    pipeline_stages, pipeline_interleave, pipeline_segments, pipeline_scheduler: the number of stages; whether a rank
    has several chunks of the network, which is also so with more than one segment; the order of their work.

    ranks: number of ranks of one stage. mode: a ParallelMode.
    dataset_strategy: "data_parallel" (every rank feeds its own rows), "full_batch" (every rank feeds the global batch),
    or one strategy per input (tuples of ints or NamedLayouts).
    script_folder: file names in the text are relative to it.
    device: "CPU" or "GPU" (`device_target`). Attention written as separate operators becomes one operator on GPUs,
    large attention also on CPUs.
    keeps_strategies: keep strategies for this number of ranks on the operators although the mode shards nothing, so
    that the operators match those of a sharded compile, to compare the two; 0: keep none.
    search_terms: cost terms of a search besides the bytes sent.
    strategies_from: a file with strategies of operators, "" for none.
    pipeline_table: the schedule table, if pipeline_scheduler names a file.
    stage_plan: stages from a plan, which override those of cells.
    set_at: the lines of the script that made the settings; errors point there.
    """

    ranks: int = 1
    mode: str = "stand_alone"
    dataset_strategy: str | tuple[Any, ...] = "data_parallel"
    script_folder: str = ""
    device: str = "CPU"
    keeps_strategies: int = 0
    search_terms: Terms = _NONE
    strategies_from: str = ""
    pipeline_table: str = ""
    stage_plan: StagePlan | None = None
    set_at: Places = field(default=(), compare=False, repr=False)

    @property
    def all_ranks(self) -> int:
        """Number of ranks of all stages."""
        return self.ranks * self.pipeline_stages

    @property
    def sharded(self) -> bool:
        """Whether operators are sharded, so that strategies apply."""
        return self.mode in SHARDED

    @property
    def folds_layers(self) -> bool:
        """Whether equal layers may become one graph.

        They may not on a GPU, where every layer launches kernels with its own weights; in Float8; with a strategy file,
        or a plan that does not name layers together, which has strategies per layer; with a schedule table; or with a
        schedule that splits gradients, because a loop over layers computes the gradients of inputs and of weights
        together.
        """
        if self.device == "GPU" or self.pipeline_table or self.fp8_format:
            return False
        if self.pipeline_stages > 1:
            from mspc.passes.lib.schedules import WITH_SPLIT_GRADIENTS  # imported late: few networks have stages

            if self.pipeline_scheduler in WITH_SPLIT_GRADIENTS:
                return False
        if not self.strategies_from:
            return True
        from mspc.plans.files.plan_file import names_layers_together  # imported late: only a plan needs it

        return names_layers_together(Path(self.strategies_from))

    def place_of(self, *names: str) -> Location | None:
        """Return the line that made the first of these settings that the script set, or None."""
        return first_place(self.set_at, *names)

    def attributes(self, needs: str = "") -> dict[str, Any]:
        """Return the settings that apply in this mode, for the header of the graph: those not at their default, or all
        that apply only together with `needs`."""
        found: dict[str, Any] = {}
        for name, setting in compiled_settings().items():
            value = getattr(self, name)
            counts = (not setting.modes or self.mode in setting.modes) and setting.needs == needs
            if counts and (needs or value != getattr(_Attributes, name)):
                found[name] = value
        return found

    def header(self) -> dict[str, Any]:
        """Return the header of the graph, without settings that apply only together with others."""
        found = {"mode": self.mode, "ranks": self.ranks} | self.attributes()
        if self.search_mode:
            found |= self.search_terms.attributes()
        if self.pipeline_table:
            found["pipeline_table"] = self.pipeline_table
        if self.stage_plan is not None and self.stage_plan.chunks > 1:
            found["stages_are_chunks"] = True
        if self.keeps_strategies:
            found["strategies_for"] = self.keeps_strategies
        return found

    @property
    def feeds_own_rows(self) -> bool:
        """Whether the graph that all ranks share has one rank's types, because each rank feeds its own rows of the
        batch."""
        return self.mode in ("data_parallel", "hybrid_parallel") and self.ranks > 1

    @staticmethod
    def from_context(context: FrozenContext, ranks: int, script_folder: str = "") -> Config:
        """Return the settings of a launch in this context. Raise MspcError if settings exclude each other or do not fit
        the number of ranks."""
        if context.parallel_mode == "data_parallel" and context.full_batch:
            raise MspcError(
                "data_parallel mode takes no full_batch: every rank trains on its own rows",
                context.place_of(*_DATA),
                ['use dataset_strategy="data_parallel", or semi_auto_parallel mode'],
                kind=RuntimeError,
            )
        if context.enable_parallel_optimizer and context.optimizer_shard_size > ranks:
            raise MspcError(
                f"optimizer_weight_shard_size is {context.optimizer_shard_size}, but there are {ranks} ranks",
                context.place_of(*_SHARD_SIZE),
                ["it must be -1 or a number of ranks that share an update"],
                kind=RuntimeError, code="E0414",
            )
        plan = _stage_plan(context)
        stages = _stages(context, ranks) if plan is None else plan.count
        if ranks % stages:
            raise MspcError(
                f"the plan has {stages} stages, which do not divide {ranks} ranks", context.place_of(*STRATEGIES_FROM),
                ["every stage has as many ranks as the others"], kind=RuntimeError, code="E0501",
            )  # fmt: skip
        made = Config(
            ranks=ranks // stages,
            mode=context.parallel_mode,
            dataset_strategy=context.dataset_strategy,
            script_folder=script_folder,
            device=context.device_target,
            set_at=context.set_at,
            pipeline_table="" if stages == 1 else _table_of(context),
            strategies_from=(
                context.operator_load_file or context.strategy_load_file or context.strategy_ckpt_load_file
            ),
            **{name: s.attribute_of(getattr(context, s.frozen_name)) for name, s in compiled_settings().items()},
        )
        return made if plan is None else made.in_stages(plan)

    def in_stages(self, plan: StagePlan) -> Config:
        """Return the same settings for a network in the stages of a plan. `ranks` is then the number of one stage."""
        from mspc.passes.lib.schedules import THERE_AND_BACK, check_name  # imported late: few networks have stages

        with told_at(self.place_of(*STRATEGIES_FROM)):
            check_name(plan.schedule)
        several = plan.chunks > 1 and plan.schedule not in THERE_AND_BACK
        return replace(
            self, stage_plan=plan, pipeline_stages=plan.count, pipeline_scheduler=plan.schedule,
            pipeline_interleave=several, pipeline_segments=1, pipeline_table="",
        )  # fmt: skip


def _stage_plan(context: FrozenContext) -> StagePlan | None:
    """Read the stages from the plan by which operators are sharded, or None. Raise MspcError on an invalid plan."""
    name = context.operator_load_file or context.strategy_load_file or context.strategy_ckpt_load_file
    if not name.endswith(".toml") or context.parallel_mode not in SHARDED:
        return None
    from mspc.plans.files.plan_file import stages_of_plan  # imported late: only a plan needs it

    with told_at(context.place_of(*STRATEGIES_FROM)):
        return stages_of_plan(Path(name))


def _table_of(context: FrozenContext) -> str:
    """Return the text of the schedule table that the settings name, or "". Raise MspcError on an invalid file."""
    name = context.pipeline_scheduler
    if not name.endswith(TABLES):
        return ""
    from mspc.passes.lib.schedule_tables import text_of_table  # imported late: few networks have stages

    with told_at(context.place_of("pipeline_config['pipeline_scheduler']", "pipeline_config")):
        return text_of_table(Path(name))


def _stages(context: FrozenContext, ranks: int) -> int:
    """Return the number of stages of the network. Raise MspcError if it does not divide the ranks, or the mode has no
    stages."""
    stages, place = context.pipeline_stages, context.place_of("pipeline_stages")
    if stages == 1:
        return 1
    if context.parallel_mode not in SHARDED:
        raise MspcError(
            f"pipeline_stages is {stages}, and the mode is {context.parallel_mode}, in which networks have one stage",
            place, ["set parallel_mode to semi_auto_parallel or auto_parallel"], kind=RuntimeError, code="E0505",
        )  # fmt: skip
    if ranks % stages:
        raise MspcError(
            f"pipeline_stages is {stages}, which does not divide {ranks} ranks",
            place, ["every stage has as many ranks as the others"], kind=RuntimeError, code="E0501",
        )  # fmt: skip
    return stages


@dataclass(frozen=True)
class Fed:
    """How one argument of the launch arrives.

    graph_type: its type in the compiled graph (global in sharded modes). global_type: its type over all ranks' data.
    layout: the slice of the global array that a rank feeds.
    """

    graph_type: TensorType
    global_type: TensorType
    layout: Layout


def feed(
    config: Config, types: Sequence[TensorType], are_global: bool = False, known: Sequence[Layout | None] | None = None
) -> list[Fed]:
    """Return how arguments of these types, as one rank passes them, arrive. `are_global`: the types are global already.

    known: layouts of arguments that are not data, None for data. Raise MspcError if the dataset strategy does not fit
    the arguments.
    """
    known = [None] * len(types) if known is None else known
    found: list[Fed] = []
    for i, (type, layout, entry) in enumerate(zip(types, known, _entries(config, known), strict=True)):
        if layout is None:
            found.append(_feed_one(config, type, i, are_global, entry))
        elif config.sharded:
            total = _total(type, layout)
            found.append(Fed(total, total, layout))
        else:
            found.append(Fed(type, type, Layout.replicated(config.ranks, type.rank)))
    return found


def _total(type: TensorType, layout: Layout) -> TensorType:
    """Return the global type of a tensor whose slice in `layout` has this type."""
    return type.with_shape(tuple(size * shards for size, shards in zip(type.shape, layout.strategy, strict=True)))


def _entries(config: Config, known: Sequence[Layout | None]) -> list[Any]:
    """Return the entry of the dataset strategy for every argument. If it has one entry per input, it may omit tensors
    that are not data."""
    strategy = config.dataset_strategy
    if not isinstance(strategy, tuple) or not config.sharded:
        return [strategy] * len(known)
    if len(strategy) == len(known):
        return list(strategy)
    data = sum(layout is None for layout in known)
    if len(strategy) != data and data:
        raise MspcError(
            f"dataset_strategy has {len(strategy)} entries, but the network is called with {data} tensors",
            config.place_of(*_DATA),
            ['give one strategy per input, or "data_parallel" or "full_batch"'],
            kind=RuntimeError,
        )
    rest = iter(strategy)
    return [next(rest) if layout is None else None for layout in known]


def _feed_one(config: Config, type: TensorType, index: int, are_global: bool, entry: Any) -> Fed:
    n = config.ranks
    replicated = Layout.replicated(n, type.rank)
    strategy = config.dataset_strategy
    if not type.shape or config.mode == "stand_alone" or (strategy == "full_batch" and config.sharded) or n == 1:
        return Fed(type, type, replicated)
    if isinstance(strategy, tuple) and config.sharded:
        layout = _entry_layout(config, entry, type, index)
    else:
        layout = Layout.of((n,), [(0,), *[()] * (type.rank - 1)])
    if are_global:
        if not layout.divides(type.shape):
            raise MspcError(
                f"input {index} of shape {type.shape} cannot be sharded {layout.strategy} for {n} ranks",
                config.place_of(*_DATA),
                kind=RuntimeError,
            )
        return Fed(type, type, layout)
    total = _total(type, layout)
    return Fed(total if config.sharded else type, total, layout)


def _entry_layout(config: Config, entry: Any, type: TensorType, index: int) -> Layout:
    """Return the layout of an input by its entry of the dataset strategy. Raise MspcError if the entry does not fit."""
    ranks, wrong = config.ranks, ""
    is_named = isinstance(entry, NamedLayout)
    if is_named and entry.ranks != ranks:
        wrong = f"is laid out on {entry.ranks} ranks, but there are {ranks}"
    elif not is_named and (math.prod(entry) < 1 or ranks % math.prod(entry)):
        wrong = f"is {entry}, whose product does not divide {ranks} ranks"
    else:
        layout = entry.to_layout() if is_named else Layout.from_strategy(entry, ranks)
        if len(layout.dims) == type.rank:
            return layout
        wrong = f"has {len(layout.dims)} entries for {type.rank} dimensions"
    raise MspcError(
        f"dataset_strategy of input {index} {wrong}", config.place_of(*_DATA), kind=RuntimeError, code="E0409"
    )

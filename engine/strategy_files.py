"""Strategy files: read for `--strategies`, and written if the script requests them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mspc.compiler.config import STRATEGIES_FROM
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import told_at
from mspc.mindspore_api import state
from mspc.mindspore_api.context import FrozenContext
from mspc.mindspore_api.settings import SHARDED

if TYPE_CHECKING:
    from mspc.plans.files.strategy_file import StrategyFile

GROUPS = "GROUP_INFO_FILE"
"""Environment variable with the file of groups of a rank's process, as in MindSpore."""
_PARAMETERS = ("strategy_ckpt_config['save_file']", "strategy_ckpt_save_file")
_OPERATORS = ("strategy_ckpt_config['operator_save_file']",)


def sharded_by_file(context: FrozenContext, file: Path) -> FrozenContext:
    """Return the context with operators sharded by a plan or strategy file.

    The mode becomes automatic if the script shards nothing. Raise MspcError if a plan cannot be read.
    """
    from mspc.plans.files.plan_file import SUFFIX, read_plan  # late: few runs read a plan

    places = tuple(found for found in context.set_at if found[0] not in STRATEGIES_FROM)
    context = replace(context, operator_load_file=str(file), set_at=places)
    if context.parallel_mode == "stand_alone":
        context = replace(context, parallel_mode="auto_parallel", dataset_strategy="full_batch")
    elif context.parallel_mode not in SHARDED:
        context = replace(context, parallel_mode="auto_parallel")
    device = read_plan(file).device if file.suffix == SUFFIX else ""
    return replace(context, device_target=device or context.device_target)


class StrategyFiles:
    """Strategy files of one script. A training network is written at every compile, another network only if no file was
    written before. rank: of the script; rank 0 writes the part that all ranks share. own_process: no other rank runs in
    this process."""

    def __init__(self, rank: int = 0, own_process: bool = True) -> None:
        self._rank = rank
        self._own_process = own_process
        self._written: set[str] = set()

    def write(self, compiled: Compiled, context: FrozenContext, trains: bool) -> None:
        """Write the files that the script requests, if the mode shards anything. Raise MspcError."""
        self.write_groups(compiled, context, trains)
        if not self._rank:
            self.write_shardings(compiled, context, trains)

    def write_groups(self, compiled: Compiled, context: FrozenContext, trains: bool) -> None:
        """Write which ranks hold the same slices as this one. Raise MspcError."""
        path = context.group_ckpt_save_file
        if self._own_process or not self._rank:
            path = path or os.environ.get(GROUPS, "")
        shares = compiled.config.sharded or compiled.config.mode == "data_parallel"
        if shares and self._is_due(path, trains):
            from mspc.plans.contents import groups_of, ranks_alike  # late: few scripts ask for files
            from mspc.plans.files.strategy_file import write_groups

            with told_at(context.place_of("group_ckpt_save_file")):
                groups = groups_of(compiled.rank_graph(self._rank), self._rank)
                write_groups(Path(path), groups, ranks_alike(compiled.graph, compiled.config.ranks, self._rank))

    def write_shardings(self, compiled: Compiled, context: FrozenContext, trains: bool) -> None:
        """Write the layouts of operators and parameters. Raise MspcError."""
        if not compiled.config.sharded:
            return
        for path, of_operators, names in (
            (context.strategy_save_file or context.strategy_ckpt_save_file, False, _PARAMETERS),
            (context.operator_save_file, True, _OPERATORS),
        ):
            if self._is_due(path, trains):
                from mspc.plans.files.strategy_file import write_strategies

                content = _content_of(compiled, context.strategy_trainable_only, of_operators)
                with told_at(context.place_of(*names)):
                    write_strategies(Path(path), content)

    def _is_due(self, path: str, trains: bool) -> bool:
        """Return whether a file must be written now, and mark it as written."""
        if not path or (path in self._written and not trains):
            return False
        self._written.add(path)
        return True


def write_strategy_files(compiled: Compiled, context: FrozenContext) -> None:
    """Write the files that the script requests, for one compile. Raise MspcError."""
    files = StrategyFiles(vars(state.current())["rank"])
    files.write_groups(compiled, context, trains=True)
    files.write_shardings(compiled, context, trains=True)


def _content_of(compiled: Compiled, trainable_only: bool, of_operators: bool) -> StrategyFile:
    """Return the content of a strategy file of a compiled network: of its parameters, or of all operators if
    `of_operators`."""
    from mspc.plans.contents import sharded_parameters
    from mspc.plans.files.strategy_file import StrategyFile

    if of_operators:
        return StrategyFile(compiled.strategies.by_place)
    return StrategyFile(compiled.strategies.by_parameter, sharded_parameters(compiled.graph, trainable_only))

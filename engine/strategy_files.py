"""Writes how a network was cut to the files that its script asks for."""

from __future__ import annotations

from pathlib import Path

from mspc.api import state
from mspc.api.context import FrozenContext
from mspc.checkpoint.cuts import cut_of
from mspc.checkpoint.strategy_file import StrategyFile, write_strategies
from mspc.compiler.driver import Compiled
from mspc.engine.group_files import write_group_file
from mspc.ir.layout import Layout


class StrategyFiles:
    """The files of one script. A network that trains is written whenever it is compiled, another one where no file was
    written before it."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def write(self, compiled: Compiled, context: FrozenContext, trains: bool) -> None:
        """Write what the script asks for, where the mode cuts anything. Raises MspcError."""
        if not compiled.config.sharded:
            return
        for path in (context.strategy_save_file or context.strategy_ckpt_save_file, context.operator_save_file):
            if not path or (path in self._written and not trains):
                continue
            self._written.add(path)
            of_operators = path == context.operator_save_file
            write_strategies(Path(path), strategies_of(compiled, context.strategy_trainable_only, of_operators))


def write_once(compiled: Compiled, context: FrozenContext) -> None:
    """Write what the script asks for of one compile. Raises MspcError."""
    StrategyFiles().write(compiled, context, trains=True)
    write_group_file(compiled, context, state.current().rank)


def strategies_of(compiled: Compiled, trainable_only: bool, of_operators: bool = False) -> StrategyFile:
    """What a strategy file says of a compiled network; with `of_operators` of all operators, and of no parameter."""
    if of_operators:
        return StrategyFile(compiled.strategies.by_place)
    parameters = {
        p.name: cut_of(p.layout)
        for p in compiled.graph.parameters
        if p.kind == "parameter" and isinstance(p.layout, Layout) and (p.trainable or not trainable_only)
    }
    return StrategyFile(compiled.strategies.by_parameter, parameters)

"""Which modules of a program run on which stage of a pipeline.

A network repeats one block, and the blocks are divided among the stages, one behind another. What a plan names ahead of
them, as `base_model_pp_plan` does with the table of words, is on the first stage, and what it names behind them on the
last one; all else is where what it reads is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.node_lines import scope_of
from mspc.readers.pytorch.plans.matching import matched
from mspc.readers.pytorch.program import ExportedProgram

_BLOCK = re.compile(r"(.*?)\.(\d+)(?=\.|$)")


def stages_of(plan: str, program: ExportedProgram, count: int, named: Sequence[str]) -> dict[str, int]:
    """Stages by what the front end calls the scopes of nodes. plan: its name. named: modules, in their order.

    Raises:
        MspcError: there are fewer blocks than stages, or a name is none of the program's.
    """
    if count < 2:
        return {}
    scopes = list(dict.fromkeys(node.scope for node in program.graph.nodes if node.scope))
    first: dict[str, int] = {}
    """Modules with all they are in, by the first node that is in them."""
    for place, scope in enumerate(scopes):
        parts = scope.split(".")
        for length in range(1, len(parts) + 1):
            first.setdefault(".".join(parts[:length]), place)
    found = matched(plan, dict.fromkeys(named), first, "module")
    lists = _lists(scopes)
    chosen = {name: blocks for name, blocks in lists.items() if not named or name in found}
    blocks = max(chosen.values(), key=len, default=[])
    if len(blocks) < count:
        raise MspcError(
            f"{plan}: there are {count} stages, and the longest list of modules that are alike has {len(blocks)}",
            notes=["stages are made of whole modules, as of `layers.0`, `layers.1`"],
        )
    stages = {block: number * count // len(blocks) for number, block in enumerate(blocks)}
    begin = min(first[block] for block in blocks)
    of_blocks = blocks[0].rpartition(".")[0]
    for name in found:
        if name != of_blocks:
            stages[name] = 0 if first[name] < begin else count - 1
    return {scope_of(node): stage for node in program.graph.nodes if (stage := _of(node.scope, stages)) is not None}


def _lists(scopes: Sequence[str]) -> dict[str, list[str]]:
    """Lists of modules by their names, outermost ones, each with its modules in order."""
    found: dict[str, list[str]] = {}
    for scope in scopes:
        block = _BLOCK.match(scope)
        if block is not None and block[0] not in found.setdefault(block[1], []):
            found[block[1]].append(block[0])
    return found


def _of(scope: str, stages: Mapping[str, int]) -> int | None:
    """The stage of the innermost module that has one."""
    while scope:
        if scope in stages:
            return stages[scope]
        scope = scope.rpartition(".")[0]
    return None

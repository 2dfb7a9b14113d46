"""Facts of whatever a command names: files that are there, or scripts and networks that are compiled for it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.machine_file import H200
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.facts.model import Facts
from mspc.commands.facts.reading import folder_facts, read_facts
from mspc.commands.report.loudness import Loudness
from mspc.engine.capture import parse_target
from mspc.ir.diagnostics import MspcError

SCRIPT = ".py"


@dataclass(frozen=True)
class Compiling:
    """How scripts are compiled. ranks: None asks the script. inputs: of a named network."""

    ranks: int | None = None
    inputs: tuple[str, ...] = ()


def target_facts(target: str, compiling: Compiling = Compiling(), machine: Machine = H200) -> Facts:
    """The facts of a file or folder as `read_facts`, or of a script or a named network, compiled and forgotten.

    Raises:
        MspcError: it cannot be read or compiled.
    """
    if not _is_compiled(target):
        return read_facts(Path(target), machine)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "graph"
        options = CompileOptions(compiling.ranks, out=folder, inputs=compiling.inputs, loudness=Loudness(quiet=True))
        compile_target(target, options)
        return replace(folder_facts(folder, machine), name=target)


def check_used(targets: tuple[str, ...], compiling: Compiling) -> None:
    """Raise MspcError where something is said of how scripts are compiled, and no target is one."""
    if compiling == Compiling() or any(map(_is_compiled, targets)):
        return
    none = f"{' and '.join(targets)} {'are' if len(targets) > 1 else 'is'} none"
    raise MspcError(f"--ranks and --input are for scripts, and {none}")


def _is_compiled(target: str) -> bool:
    parsed = parse_target(target)
    return not isinstance(parsed, Path) or parsed.suffix == SCRIPT

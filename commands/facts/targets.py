"""A command is given files that are there, or a script or a network that is compiled for the moment; one rule tells
them apart. One rule."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mspc.analysis.cost.known_machines import H200
from mspc.analysis.cost.machine import Machine
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.facts.model import CompileFacts
from mspc.commands.facts.reading import folder_facts, read_facts
from mspc.commands.options import is_imported
from mspc.engine.capture import parse_target
from mspc.ir.diagnostics import MspcError

SCRIPT = ".py"
SCRIPTS_OWN = CompileOptions()
"""A script says all of its compile."""


def is_script(target: str) -> bool:
    """Whether a target is compiled: a script, a network in one ("net.py:Net(32)"), or one of PyTorch. What lies there
    under the full name goes first: a folder is one whatever it is called. Raises MspcError as `parse_target`."""
    if is_imported(Path(target)):
        return True
    if os.path.isdir(target):
        return False
    parsed = Path(target) if os.path.exists(target) else parse_target(target)
    return not isinstance(parsed, Path) or parsed.suffix == SCRIPT


def file_of(target: str) -> Path:
    """The folder or file that a target names, of a network the script that has it."""
    parsed = Path(target) if os.path.exists(target) else parse_target(target)
    return parsed if isinstance(parsed, Path) else parsed.path


@contextmanager
def compiled_folder(target: str, options: CompileOptions) -> Generator[Path]:
    """The folder of a script's compile, which is gone behind the `with`. Raises MspcError as `compile_target`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "graphs"
        compile_target(target, replace(options, out=folder, loudness=options.loudness.of_part()))
        yield folder


def target_facts(target: str, options: CompileOptions = SCRIPTS_OWN, machine: Machine = H200) -> CompileFacts:
    """The facts of a file or folder as `read_facts`, or of a script or a named network, compiled and forgotten.

    Raises:
        MspcError: it cannot be read or compiled.
    """
    if not is_script(target):
        return read_facts(Path(target), machine)
    with compiled_folder(target, replace(options, kinds_only=True)) as folder:
        return replace(folder_facts(folder, machine), name=target)


def check_used(targets: tuple[str, ...], options: CompileOptions) -> None:
    """Raise MspcError where options say how scripts are compiled, and no target is one."""
    given = [
        name
        for name, value in (
            ("--ranks", options.ranks), ("--input", options.inputs), ("--strategies", options.strategies),
            ("arguments of a script", options.script_arguments), (options.imported.given, options.imported.given),
        )
        if value
    ]  # fmt: skip
    if not given or any(map(is_script, targets)):
        return
    several = len(targets) > 1
    none = f"{' and '.join(targets)} {'are no scripts and take' if several else 'is no script and takes'}"
    raise MspcError(f"{none} no {' or '.join(given)}")

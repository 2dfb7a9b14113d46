"""StableHLO programs as targets of commands: texts that JAX writes, and functions that give a lowered step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mspc.commands.options import STABLEHLO, ImportOptions, target_name
from mspc.compiler.driver import Compiled
from mspc.engine.capture import CapturedCall, NamedTarget, capture_network
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.types import TensorType
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.state import Session

PYTHON = "MSPC_JAX_PYTHON"
"""Environment variable with the Python that has JAX; without it, it is the one that runs mspc."""
_LONGEST = 600
"""Seconds that a script may take to lower a step."""


def capture_stablehlo(
    target: NamedTarget | Path, options: ImportOptions, inputs: Sequence[str], session: Session
) -> CapturedCall:
    """Return the call of a step with global inputs, sharded as the text says, else by the batch if the number of ranks
    divides it. Raise MspcError if the program cannot be read, is made for another number of devices, or an option does
    not fit it."""
    name = target_name(target)
    if inputs:
        raise MspcError(f"--input is for a network in a script; {name} knows its inputs")
    other = replace(options, jax=False, device="").given
    if other:
        raise MspcError(f"{other} is for a network of PyTorch, and {name} is a program of JAX", code="E0107")
    path = target if isinstance(target, Path) else target.path
    layouts: list[Any] = []
    made_for: list[int] = []

    def make() -> tuple[Any, Sequence[TensorType]]:
        from mspc.readers.stablehlo.network import StableHloNetwork  # late: few networks come from JAX

        module = read_target(target)
        partitions = module.partitions
        if partitions and not session.launched:
            session.size = partitions
        ranks = session.size
        if partitions and ranks not in (1, partitions):
            say_once("partitions", f"{name} is sharded for {partitions} devices, and there are {ranks} ranks: its "
                     "shardings are left out")  # fmt: skip
        made_for.append(ranks)
        network = StableHloNetwork(module, ranks, not partitions or ranks == partitions)
        if network.ranks > 1 and network.has_shardings:
            layouts.extend(network.input_layouts())
        return network, network.input_types

    def data(types: Sequence[TensorType]) -> str | tuple[Any, ...]:
        from mspc.commands.imported import sharded_batch  # late: as above

        if layouts:
            return tuple((1,) * type.rank if each is None else each for type, each in zip(types, layouts, strict=True))
        return sharded_batch(types, session.size)

    captured = capture_network(make, path, session, data)
    context = captured.context
    if not session.launched:
        context = replace(context, device_num=made_for[-1])
    if layouts:  # what the text leaves open follows what it says
        context = replace(context, parallel_mode="auto_parallel", search_mode="sharding_propagation")
    if options.device:
        context = replace(context, device_target=options.device.upper())
    return replace(captured, context=context)


def write_partition_specs(compiled: Compiled, network: object, to: Path) -> None:
    """Write the layouts of a step's arguments as PartitionSpecs. Raise MspcError if the network is none of JAX."""
    from mspc.readers.stablehlo.network import StableHloNetwork  # late: as above
    from mspc.readers.stablehlo.partition_specs import partition_specs

    if not isinstance(network, StableHloNetwork):
        raise MspcError("--out-jax writes PartitionSpecs for a step of JAX, and this network is none", code="E0107")
    code = partition_specs(compiled.graph, network, compiled.compile_id)
    write_atomically(to, lambda file: file.write(code.encode()))


def read_target(target: NamedTarget | Path) -> Any:
    """Return the module of a target: a text of StableHLO, a module of HLO as text or serialized, which JAX converts, or
    the step that a script lowers."""
    from mspc.readers.stablehlo.text_reader import read_module, read_text  # late: as above

    if isinstance(target, Path) and target.suffix != STABLEHLO:
        if not target.is_file():
            raise MspcError(f"there is no module {str(target)!r}", code="E0101")
        return read_text(written_text("convert_hlo", [str(target.resolve())], f"read {target}"), str(target))
    if isinstance(target, Path):
        return read_module(target)
    return read_text(lowered_text(target), target_name(target))


def lowered_text(target: NamedTarget) -> str:
    """Return the text of a step that a script lowers, in a process of a Python with JAX. Raise MspcError if it
    fails."""
    if not target.path.is_file():
        raise MspcError(f"there is no script {str(target.path)!r}", code="E0101")
    given = [str(target.path.resolve()), target.name, list(target.args), dict(target.keywords)]
    return written_text("lower_jax_step", given, f"lower {target_name(target)}")


def written_text(script: str, given: Sequence[Any], doing: str) -> str:
    """Return the text that a script beside this module writes to the file named last, in a process of a Python with
    JAX. doing: as in "cannot lower". Raise MspcError if it fails."""
    python = os.environ.get(PYTHON) or sys.executable
    with TemporaryDirectory(prefix="mspc-") as folder:
        to = Path(folder) / "step.mlir"
        command = [python, "-P", str(Path(__file__).with_name(f"{script}.py.txt")), json.dumps([*given, str(to)])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MspcError(f"cannot {doing} with {python}: {error}") from None
        if done.returncode or not to.is_file():
            lines = done.stderr.strip().splitlines()
            notes = [*lines[-4:-1], f"it runs in {python}; {PYTHON} names another Python that has JAX"]
            raise MspcError(f"cannot {doing}: {lines[-1] if lines else 'it says nothing'}", notes=notes)
        return to.read_text()

"""Folders of `mspc capture` as targets of commands: the steps that PyTorch runs on each rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.commands.options import is_capture
from mspc.engine.capture import CapturedCall, capture_made
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.mindspore_api.state import Session

RANK_FILE = re.compile(r"rank_(\d{1,9})\.step")


def ranks_in(folder: Path) -> int:
    """Return the number of ranks of a folder. Raise MspcError if it is no capture, or the file of a rank is missing."""
    from mspc.readers.pytorch.captured_kinds import read_kinds  # late: few commands read captures

    if not is_capture(folder):
        raise MspcError(f"{folder} is no folder of mspc capture: it has no rank_0.step")
    found = {int(match[1]) for path in folder.iterdir() if (match := RANK_FILE.fullmatch(path.name))}
    kinds = read_kinds(folder)
    wanted = [kind.traced for kind in kinds] or range(max(found) + 1)
    missing = [rank for rank in wanted if rank not in found]
    if missing:
        raise MspcError(
            f"{folder} has no file of rank {missing[0]}, but of {len(found)} others",
            notes=["mspc capture writes all of them again"],
        )
    return sum(len(kind.ranks) for kind in kinds) or len(found)


def capture_step(folder: Path, session: Session) -> CapturedCall:
    """Return the step of the session's rank as a call. Raise MspcError if its file cannot be read, or is of a job of
    another size."""
    from mspc.readers.pytorch.captured import read_rank  # late: few commands read captures
    from mspc.readers.pytorch.network import ImportedNetwork
    from mspc.readers.pytorch.reasons import with_reasons

    rank = session.rank

    def make() -> tuple[Any, Sequence[TensorType]]:
        step = read_rank(folder, rank)
        if step.ranks != session.size:
            raise MspcError(f"{step.program.name} is of one of {step.ranks} ranks, not of {session.size}")
        session.initialized = True
        session.groups.update(step.groups)
        network = ImportedNetwork(with_reasons(step.program), "loss")
        return network, network.input_types

    captured = capture_made(make, folder, session, lambda types: "full_batch")
    return replace(captured, context=replace(captured.context, parallel_mode="stand_alone"))

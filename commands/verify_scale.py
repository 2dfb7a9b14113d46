"""`mspc verify --scale` runs the programs of all ranks together at small sizes and compares them with one device."""

from __future__ import annotations

import gc
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mspc.commands.compile import CompileOptions
from mspc.commands.facts.equal_ranks import dump_text
from mspc.commands.options import is_capture, is_imported, is_stablehlo
from mspc.commands.report.scale import report_scale
from mspc.commands.report.tables import print_line, write_report
from mspc.commands.verify import of_script
from mspc.commands.verify_folder import ToProve, of_folder
from mspc.engine.capture import parse_target
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY
from mspc.runtime.available_memory import explain_memory_errors
from mspc.runtime.program import PROGRAM
from mspc.verify.scale.foreign_dumps import BEGIN, END, EXECUTE, DumpsFound, ForeignDump, look_at
from mspc.verify.scale.small_programs import Unfit


def verify_scale(target: str, options: CompileOptions, seed: int, against: Path | None = None) -> None:
    """Compare, print the compared values and the verdict, and fail if anything differs.

    Args:
        target: as for `mspc compile`, the folder that it wrote, or a folder of MindSpore's dumps.
        against: the capture of one device, if the target is a capture.

    Raises:
        MspcError: the program cannot be compiled or read, or it cannot be run at sizes that fit on this machine.
        ExecutionError: a value differs, or ranks wait for each other.
    """
    begin = time.perf_counter()
    is_folder = os.path.isdir(target) and not is_imported(Path(target))
    if is_folder and not (Path(target) / PROGRAM).exists() and any(Path(target).rglob("*.ir")):
        verify_dumps(Path(target), options.json)
        return
    if is_capture(Path(target)):
        from mspc.commands import verify_capture  # late: few commands read captures

        if against is None:
            notes = ["mspc capture script.py --ranks 1 --out DIR records one device, and --against DIR names it"]
            raise MspcError(f"{target} is a capture, and says nothing of one device", notes=notes)
        made = verify_capture.programs_of_captures(Path(target), against)
        given = ToProve(made.one, made.kinds, made.values, results=made.results, batch=made.batch)
        verify_capture.check_precision(made)
    elif against is not None:
        parsed = parse_target(target)
        if not (is_stablehlo(parsed) or options.imported.jax):
            raise MspcError(f"--against {against} is for a capture or a step of JAX, and {target} is none")
        from mspc.commands.verify_partitioned import programs_of_partitioned  # late: few steps come from JAX

        given = programs_of_partitioned(parsed, against)
    else:
        given = of_folder(Path(target), options) if is_folder else of_script(target, options)
    gc.collect()
    try:
        with explain_memory_errors("what ranks hold at small sizes"):
            found = given.proved(seed)
    except Unfit as error:
        raise MspcError(f"the program cannot be made smaller: {error.reason}") from None
    seconds = time.perf_counter() - begin
    notes = (*given.places(found), *given.notes)
    report_scale(found, options.json, options.loudness, seed, seconds, notes, given.compile_id)


RANK = re.compile(r"rank_?(\d+)")
DUMP_STAGES = {"begin": BEGIN, "end": END, "validate": EXECUTE, "execute": EXECUTE}
"""Stages by words in the names of files. A dump without such a word counts as a graph that ranks execute."""
NEVER_SAID = (
    "values: nothing is run, so that sums which are missing or doubled are not seen",
    "the number of ranks, which is taken to be one more than the largest that a group names",
)
FEW = 8


def verify_dumps(folder: Path, json: Path | None) -> None:
    """Check all dumps of a folder; dumps with one name or in one folder belong to one compile.

    Raises:
        MspcError: a file is no dump of MindSpore, or cannot be read. ExecutionError: a check fails.
    """
    compiles: dict[str, list[ForeignDump]] = {}
    for path in sorted(folder.rglob("*.ir")):
        module = parse(dump_text(path), REGISTRY, str(path))
        if module.dialect != "mindspore":
            raise MspcError(f"{path} is no dump of MindSpore, and its folder has no {PROGRAM}")
        found = RANK.search(str(path.relative_to(folder)))
        stage = next((stage for word, stage in DUMP_STAGES.items() if word in path.stem), EXECUTE)
        dump = ForeignDump(str(path), int(found[1]) if found else 0, stage, tuple(module.graphs))
        place = RANK.sub("rank", str(path.relative_to(folder).parent))
        begin, *rest = path.stem.split(".")  # the name before that of the stage
        compiles.setdefault(f"{place}/{begin}" if rest else place, []).append(dump)
    told = [look_at(dumps) for dumps in compiles.values()]
    files = sum(map(len, compiles.values()))
    if json is not None:
        content = _content(files, told)
        write_report(json, "verify --scale", content, int(not content["fits"]))
    if json != Path("-"):
        _show(files, told)
    wrong = [each for found in told for each in found.wrong]
    if wrong:
        notes = [f"{each.dump.name}: {each.node.label}: {each.why}" for each in wrong[1:FEW]]
        first = wrong[0]
        message = f"{first.dump.name}: {first.node.label}: {first.why}"
        raise ExecutionError(message, notes=notes, frames=first.node.frames)


def _counts(told: Sequence[DumpsFound], what: str) -> Counter[str]:
    return sum((Counter(getattr(each, what)) for each in told), Counter[str]())


def _show(files: int, told: Sequence[DumpsFound]) -> None:
    checked = ", ".join(f"{count} {what}" for what, count in sorted(_counts(told, "checked").items())) or "nothing"
    wrong = sum(len(found.wrong) for found in told)
    print_line(f"{'fits' if not wrong else 'does not fit'}: {checked} in {files} dumps of MindSpore")
    print_line("not said, and not checked:")
    for what, count in sorted(_counts(told, "unsaid").items()):
        print_line(f"  {what} ({count})")
    for what in NEVER_SAID:
        print_line(f"  {what}")


def _content(files: int, told: Sequence[DumpsFound]) -> dict[str, object]:
    return {
        "fits": not any(found.wrong for found in told),
        "files": files,
        "checked": _counts(told, "checked"),
        "wrong": [
            {"file": each.dump.name, "operator": each.node.label, "why": each.why}
            for found in told
            for each in found.wrong
        ],
        "unsaid": [*_counts(told, "unsaid"), *NEVER_SAID],
    }

"""`mspc verify --scale` of a folder with MindSpore's dumps: checks what they say, and lists what they do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mspc.commands.facts.files import dump_text
from mspc.commands.report.table import print_line, write_report
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY
from mspc.runtime.program import PROGRAM
from mspc.verify.scale.foreign_dumps import BEGIN, END, EXECUTE, DumpsFound, ForeignDump, look_at

RANK = re.compile(r"rank_?(\d+)")
STAGES = {"begin": BEGIN, "end": END, "validate": EXECUTE, "execute": EXECUTE}
"""By words in the names of files: a dump that has none is taken for what ranks execute."""
NEVER_SAID = (
    "values: nothing is run, so that sums which are missing or doubled are not seen",
    "the number of ranks, which is taken to be one more than the largest that a group names",
)
FEW = 8


def has_dumps(folder: Path) -> bool:
    """Whether a folder is one of dumps, and no compile's."""
    return not (folder / PROGRAM).exists() and any(folder.rglob("*.ir"))


def verify_dumps(folder: Path, json: Path | None) -> None:
    """Look at all dumps of a folder, those of one name or one folder as of one compile.

    Raises:
        MspcError: a file is none of MindSpore's, or cannot be read. ExecutionError: something does not fit.
    """
    compiles: dict[str, list[ForeignDump]] = {}
    for path in sorted(folder.rglob("*.ir")):
        module = parse(dump_text(path), REGISTRY, str(path))
        if module.dialect != "mindspore":
            raise MspcError(f"{path} is no dump of MindSpore, and its folder has no {PROGRAM}")
        found = RANK.search(str(path.relative_to(folder)))
        stage = next((stage for word, stage in STAGES.items() if word in path.stem), EXECUTE)
        dump = ForeignDump(str(path), int(found[1]) if found else 0, stage, tuple(module.graphs))
        compiles.setdefault(_compile_of(path, folder), []).append(dump)
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


def _compile_of(path: Path, folder: Path) -> str:
    """What dumps of one compile have in common: their folders without the rank, and a name ahead of the stage's."""
    place = RANK.sub("rank", str(path.relative_to(folder).parent))
    first, *rest = path.stem.split(".")
    return f"{place}/{first}" if rest else place


def _counts(told: Sequence[DumpsFound], what: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in told:
        for name, count in getattr(each, what).items():
            found[name] = found.get(name, 0) + count
    return found


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

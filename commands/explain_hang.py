"""`mspc explain-hang`: the rank that made a job hang, from the records of its ranks."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mspc.commands.report.tables import TextTable, print_line, print_table, size_text, write_report
from mspc.ir.diagnostics import shown_ranks
from mspc.ir.files.atomic_writing import check_writable
from mspc.ops.collective.base import Collective
from mspc.runtime.faults.alignment import HangCause
from mspc.runtime.faults.call_log import planned_call
from mspc.runtime.faults.culprits import BlockedRank, Hang, explain, with_all_calls
from mspc.runtime.faults.formats.reading import read_records
from mspc.runtime.faults.recorded_calls import Record, RecordedCall, world_of
from mspc.runtime.program import PROGRAM, load_program

MAX_WAITS = 12
"""Most rows of waiting ranks that are printed."""
OTHERS = ("left out", "died", "stopped before", "no record")
"""Faults whose call is one of another rank, in a group of that rank."""
WORDS = {
    "left out": "left out {call}",
    "doubled": "issued {call} twice",
    "doubled or left out": "issued {call} twice, or left out {expected} before it",
    "swapped": "issued {call} before {expected}",
    "added": "issued {call}, which other ranks do not, before {expected}",
    "another collective": "issued {call} where {expected} belongs",
    "another size": "issued {call} where the size is {expected_sizes}",
    "another type": "issued {call} where the type is {expected_types}",
    "another group": "issued {call} where other calls from this line have another group",
    "died": "{end} before {call}",
    "stopped before": "stopped before {call}",
    "no record": "has no record, and others wait for it in {call}",
    "late at": "comes late to {call}",
}


def explain_records(
    paths: Sequence[Path], ranks: int, program: Path | None, json: Path | None, page: Path | None = None
) -> int:
    """Print the culprit and who waits for whom; return the exit status: 1 if there is one. page: also written, as HTML.
    Raise MspcError if a file is no record, records are of different jobs, or the program cannot be read."""
    if page is not None:
        check_writable(page, "--page")
    records, unread = read_records(paths)
    for each in unread:
        print(f"warning: {each}", file=sys.stderr)
    steps = None if program is None else steps_of(program, range(world_of(records, ranks)))
    found = explain(records, ranks, steps)
    if (complete := with_all_calls(records, found)) != records:
        found = explain(complete, ranks, steps)
    status = int(bool(found.explanations))
    content = _content(found, len(records)) if json or page else {}
    if json is not None:
        write_report(json, "explain-hang", content, status)
    if json != Path("-"):
        _print(found, records)
    if page is not None:
        # Late: the code of pages loads the whole of `mspc view`.
        from mspc.commands.view.hang import write_hang_page

        size = write_hang_page(page, content, found, records)
        if json != Path("-"):
            print_line(f"{page}: {size_text(size)}")
    return status


def _print(found: Hang, records: Sequence[Record]) -> None:
    calls = [len(record.calls) for record in records if record.calls or record.end is None] or [0]
    lost = sum(record.dropped > 0 for record in records)
    cut = f"; {lost} have lost their oldest calls" if lost else ""
    counts = " to ".join(str(count) for count in sorted({min(calls), max(calls)}))
    print_line(f"{len(calls)} records of {counts} calls{cut}")
    ended = {record.rank for record in records if record.end is not None}
    if lost := [rank for rank in found.missing if rank not in ended]:
        print_line(f"no record of {shown_ranks(lost)}")
    if not found.explanations:
        print_line("the records show no fault: all ranks issued the same calls, and none waits for another")
        if found.missing:
            print_line(f"if the job has not ended there, the fault is in {shown_ranks(found.missing)}")
    notes = {record.rank: record.notes for record in records}
    for number, each in enumerate(found.explanations):
        sure = "" if each.certain >= 1 else f" ({each.certain:.0%} of the evidence)"
        print_line(f"{'or ' if number else ''}{_said(each)}{sure}")
        if each.end is not None and each.fault != "died":
            print_line(f"  rank {each.rank} {each.end.said}")
        for note in notes.get(each.rank, ()):
            print_line(f"  rank {each.rank} is {note}")
    if found.wrong_from is not None:
        step = f"from step {found.step} on" if found.step > 0 else "from then on"
        print_line(f"numbers can be wrong {step}: {_shown(found.wrong_from)} met another collective of its group")
    if found.late:
        print_line("slow ranks, and how long others waited for them: " + ", ".join(
            f"rank {rank} {delay / 1e9:.1f} s" for rank, delay in found.late[:MAX_WAITS]
        ))  # fmt: skip
    if found.waits:
        print_table(_waits(found.waits))


def steps_of(program: Path, ranks: Sequence[int]) -> dict[int, list[RecordedCall]]:
    """Return the collectives of a step of each rank, in order.

    program: the folder of a compile, or a script or capture, which is compiled. ranks: all of the job. Raise MspcError
    if the program cannot be read or compiled.
    """
    if (program / PROGRAM).is_file() or (program.is_dir() and not (program / "rank_0.step").is_file()):
        return _steps_in(program, ranks)
    # Late: they load the compiler.
    from mspc.commands.captured import capture_script
    from mspc.commands.compile import CompileOptions, compile_target
    from mspc.commands.report.verbosity import Loudness

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # scripts print, too
        out, source = Path(folder, "program"), program
        if program.is_file() and b"mspc.capture" in program.read_bytes():
            source = Path(folder, "capture")
            capture_script(program, (), len(ranks), source, False, False)
        count = None if source.is_dir() else len(ranks)
        compile_target(str(source), CompileOptions(out=out, ranks=count, loudness=Loudness(quiet=True)))
        return _steps_in(out, ranks)


def _steps_in(folder: Path, ranks: Sequence[int]) -> dict[int, list[RecordedCall]]:
    program = load_program(folder)
    found: dict[int, list[RecordedCall]] = {}
    for rank in ranks:
        if rank in program.execute:
            nodes = program.graph(rank, program.text(rank), frames=True).nodes
            calls = [node for node in nodes if isinstance(node.op, Collective) and node.op.communicates]
            # Kinds and lines are compared: sizes can differ between a program and a record of it.
            found[rank] = [planned_call(node, rank)._replace(sizes=(), dtypes=()) for node in calls]
    return found


def _said(each: HangCause) -> str:
    expected = each.expected
    is_own = each.fault not in OTHERS
    words = WORDS[each.fault].format(
        call=_shown(each.call, is_own), expected=_shown(expected, is_own=False), expected_sizes=_sizes(expected),
        expected_types=_types(expected), end=each.end.said if each.end else "has ended",
    )  # fmt: skip
    return f"rank {each.rank} {words}"


def _shown(call: RecordedCall | None, is_own: bool = True) -> str:
    """Return a call in a sentence. is_own: it is one of the rank that the sentence is about, in a group of that
    rank."""
    if call is None:
        return "a call that the records do not have"
    number = f"number {call.number} of group {call.group}" if call.group and is_own else ""
    operands = ", ".join(filter(None, (number, f"{_sizes(call)} {_types(call)}".strip())))
    return f"{call.kind}{f' ({operands})' if operands else ''}{f' at {call.place}' if call.place else ''}"


def _sizes(call: RecordedCall | None) -> str:
    return "" if call is None else ", ".join(str(size) for sizes in call.sizes[:1] for size in sizes)


def _types(call: RecordedCall | None) -> str:
    return "" if call is None else ", ".join(dict.fromkeys(call.dtypes))


def _waits(waits: Sequence[BlockedRank]) -> TextTable:
    rows = [
        (str(rank), f"{call.kind} {call.number}", call.group, shown_ranks(behind), _clock(since), call.place)
        for rank, call, behind, since in waits[:MAX_WAITS]
    ]
    more = f", {MAX_WAITS} of {len(waits)}" if len(waits) > MAX_WAITS else ""
    names = ("rank", "waits in", "group", "for", "since (UTC)", "at")
    return TextTable(f"who waits for whom{more}", names, rows, (0,), (5,))


def _clock(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%H:%M:%S") if 0 < nanoseconds < 1 << 62 else ""


def _content(found: Hang, records: int) -> dict[str, Any]:
    return {
        "records": records,
        "missing": list(found.missing),
        "explanations": [
            {
                "rank": each.rank, "fault": each.fault, "said": _said(each), "certain": each.certain,
                "line": each.call.place if each.call else "",
                "group": each.call.group if each.call and each.fault not in OTHERS else "",
                "collective": each.call.kind if each.call else "",
                "number": each.call.number if each.call else 0,
                "expected": each.expected.kind if each.expected else "",
                "expected_line": each.expected.place if each.expected else "",
                "end": each.end.said if each.end else "",
                "end_line": each.end.stack[0] if each.end and each.end.stack else "",
            }
            for each in found.explanations
        ],
        "waits": [
            {"rank": wait.rank, "for": list(wait.behind), "collective": wait.call.kind, "number": wait.call.number,
             "group": wait.call.group, "line": wait.call.place, "since_ns": wait.since}
            for wait in found.waits
        ],
        "late": [{"rank": rank, "seconds": delay / 1e9} for rank, delay in found.late],
        "wrong_from": None if found.wrong_from is None else {
            "step": found.step if found.step > 0 else None, "collective": found.wrong_from.kind,
            "group": found.wrong_from.group, "number": found.wrong_from.number, "line": found.wrong_from.place,
        },
    }  # fmt: skip

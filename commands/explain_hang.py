"""`mspc explain-hang`: the rank that made a job hang, from the flight records of its ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.commands.report.tables import TextTable, check_json, print_line, print_table, write_report
from mspc.ir.diagnostics import OWN_FILES
from mspc.ir.graph import Node
from mspc.ops.collective.base import Collective
from mspc.runtime.faults.culprits import BlockedRank, Hang, HangCause, explain, with_all_calls
from mspc.runtime.faults.flight_records import RecordedCall, read_records
from mspc.runtime.faults.stopped import shown_ranks
from mspc.runtime.program import load_program

MOST_WAITS = 12
"""Most rows of waiting ranks that are printed."""
WORDS = {
    "left out": "left out {expected}",
    "doubled": "issued {call} twice",
    "doubled or left out": "issued {call} twice, or left out {expected} before it",
    "swapped": "issued {call} before {expected}",
    "another collective": "issued {call} where {expected} belongs",
    "another size": "issued {call} where the size is {expected_sizes}",
    "another type": "issued {call} where the type is {expected_types}",
    "another group": "issued {call} where other calls from this line have another group",
    "stopped before": "stopped before {call}",
    "no record": "has no record, and others wait for it in {call}",
    "late at": "comes late to {call}",
}


def explain_records(paths: Sequence[Path], ranks: int, program: Path | None, json: Path | None) -> int:
    """Print the culprit and who waits for whom; return the exit status: 1 if there is one.

    Raises:
        MspcError: a file is no flight record, or the folder of the program cannot be read.
    """
    check_json(json)
    records, unread = read_records(paths)
    for each in unread:
        print(f"warning: {each}", file=sys.stderr)
    steps = None if program is None else steps_of(program, [record.rank for record in records])
    found = explain(records, ranks, steps)
    if (complete := with_all_calls(records, found)) != records:
        found = explain(complete, ranks, steps)
    status = int(bool(found.explanations))
    if json is not None:
        write_report(json, "explain-hang", _content(found, len(records)), status)
    if json == Path("-"):
        return status
    calls = [len(record.calls) for record in records]
    lost = sum(record.dropped > 0 for record in records)
    cut = f"; {lost} have lost their oldest calls" if lost else ""
    counts = " to ".join(str(count) for count in sorted({min(calls), max(calls)}))
    print_line(f"{len(records)} records of {counts} calls{cut}")
    if found.missing:
        print_line(f"no record of {shown_ranks(found.missing)}")
    if not found.explanations:
        print_line("the records show no fault: all ranks issued the same calls, and none waits for another")
    for number, each in enumerate(found.explanations):
        sure = "" if each.certain >= 1 else f" ({each.certain:.0%} of the evidence)"
        print_line(f"{'or ' if number else ''}{_said(each)}{sure}")
    if found.waits:
        print_table(_waits(found.waits))
    return status


def steps_of(folder: Path, ranks: Sequence[int]) -> dict[int, list[RecordedCall]]:
    """Return the collectives of each rank in a compiled folder, in order. Raise MspcError if it cannot be read."""
    program = load_program(folder)
    found: dict[int, list[RecordedCall]] = {}
    for rank in ranks:
        if rank in program.execute:
            nodes = program.graph(rank, program.text(rank), frames=True).nodes
            found[rank] = [_planned(node) for node in nodes if isinstance(node.op, Collective) and node.op.communicates]
    return found


def _planned(node: Node) -> RecordedCall:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.op.name).lower()
    stack = tuple(f"{frame.file}:{frame.line}" for frame in node.frames if not frame.file.startswith(OWN_FILES))
    return RecordedCall("", 0, kind, (), (), stack, kind in ("send", "receive"), False, 0, 0)


def _said(each: HangCause) -> str:
    call, expected = each.call, each.expected
    words = WORDS[each.fault].format(
        call=_shown(call), expected=_shown(expected), expected_sizes=_sizes(expected), expected_types=_types(expected)
    )
    return f"rank {each.rank} {words}"


def _shown(call: RecordedCall | None) -> str:
    if call is None:
        return "a call that the records do not have"
    place = f" at {call.place}" if call.place else ""
    operands = ", ".join(filter(None, (f"number {call.number} of group {call.group}" * bool(call.group), _sizes(call))))
    return f"{call.kind}{f' ({operands} {_types(call)})' if operands else ''}{place}"


def _sizes(call: RecordedCall | None) -> str:
    return "" if call is None else ", ".join(str(size) for size in call.sizes[0])


def _types(call: RecordedCall | None) -> str:
    return "" if call is None else ", ".join(dict.fromkeys(call.dtypes))


def _waits(waits: Sequence[BlockedRank]) -> TextTable:
    rows = [
        (str(rank), f"{call.kind} {call.number}", call.group, shown_ranks(behind), call.place)
        for rank, call, behind in waits[:MOST_WAITS]
    ]
    more = f", {MOST_WAITS} of {len(waits)}" if len(waits) > MOST_WAITS else ""
    return TextTable(f"who waits for whom{more}", ("rank", "waits in", "group", "for", "at"), rows, (0,), (4,))


def _content(found: Hang, records: int) -> dict[str, Any]:
    return {
        "records": records,
        "missing": list(found.missing),
        "explanations": [
            {
                "rank": each.rank, "fault": each.fault, "said": _said(each), "certain": each.certain,
                "line": each.call.place if each.call else "", "group": each.call.group if each.call else "",
                "collective": each.call.kind if each.call else "",
            }
            for each in found.explanations
        ],
        "waits": [
            {"rank": wait.rank, "for": list(wait.behind), "collective": wait.call.kind, "number": wait.call.number,
             "group": wait.call.group, "line": wait.call.place}
            for wait in found.waits
        ],
    }  # fmt: skip

"""The page of `mspc explain-hang`: the calls of the ranks around the fault, a row per rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mspc.commands.view.page import write_page
from mspc.runtime.faults.culprits import Hang
from mspc.runtime.faults.recorded_calls import Record

ROWS = 64
"""Most ranks of a page: those of the explanations, those that wait, then the first of the others."""
BEFORE, AFTER = 10, 14
"""Calls before and after the fault."""


def write_hang_page(out: Path, content: dict[str, Any], found: Hang, records: Sequence[Record]) -> int:
    """Write the page of a hang. Return its size in bytes.

    content: the report of `--json`. Raise MspcError if the file cannot be written.
    """
    return write_page(out, {"title": "explain-hang", "hang": {**content, "calls": _calls(found, records)}})


def _calls(found: Hang, records: Sequence[Record]) -> dict[str, Any]:
    """Return `begin`, the number since the start of the job of the first column, and `rows`: each has its `rank`, and
    from that column on `cells` [kind, group, number, place, whether the call is open], None if the record lacks it."""
    own = {record.rank: record for record in records}
    first = chain((each.rank for each in found.explanations), (wait.rank for wait in found.waits), sorted(own))
    ranks = sorted(list(dict.fromkeys(rank for rank in first if rank in own))[:ROWS])
    index = found.explanations[0].index if found.explanations else -1
    if index < 0:
        # A rank that stopped has no call of the fault: it is after its last one.
        culprit = own.get(found.explanations[0].rank) if found.explanations else None
        index = min((_length(each) for each in ([culprit] if culprit else records)), default=0)
    begin = max(0, index - BEFORE)
    end = min(index + AFTER, max((_length(own[rank]) for rank in ranks), default=0))
    return {
        "begin": begin,
        "fault": index,
        "more": len(own) - len(ranks),
        "rows": [{"rank": rank, "cells": [_cell(own[rank], i) for i in range(begin, end)]} for rank in ranks],
    }


def _length(record: Record) -> int:
    """Return how many calls the rank had issued since the start of the job."""
    return record.dropped + len(record.calls)


def _cell(record: Record, index: int) -> list[Any] | None:
    if not record.dropped <= index < _length(record):
        return None
    call = record.calls[index - record.dropped]
    return [call.kind, call.group, call.number, call.place, not (call.is_over or call.is_retired)]

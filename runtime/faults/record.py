"""A rank writes a record for the others of its host: where it is, whom it waits for, and how often it has met whom.

A job's ranks map one file of 64-bit words, a record for each. A rank writes its own record alone and reads all; nothing
here takes a lock, so a reader believes what it reads twice.
"""

from __future__ import annotations

import array
import hashlib
from functools import lru_cache
from typing import Any

PID, NODE, STEP, STATE, WAITS, CALLS, GRAPH, MEETING, MARK, LOOPS, TURNS = range(11)
MOST_LOOPS = 4
MEMBERS = TURNS + MOST_LOOPS
RANKS = MEMBERS + 1
"""Words of a record: process, node index (-1: none), step, state, whether it waits, how often it has waited, graph,
what it waits in (identity of a group, or of messages: `messages_of`; 0: nothing that can be judged), where its GPU was
last seen (`stalled.packed`, 0: nowhere), how many loops of the node it is in, the numbers of the turns of the outermost
of them, number of ranks it waits for (-1: more than fit), these ranks."""

LOOPS_AT, TURNS_AT, PLACE_WORDS = LOOPS - NODE, TURNS - NODE, MEMBERS - NODE
"""Of the words from `NODE` on, which an executor writes, where those of loops are, and how many there are."""

ABSENT, RUNNING, ENDED, FAILED = range(4)
"""States of a rank."""

_HEAD = 256
_TEXT = 129
_SLOTS = 1024
_COUNTS = _HEAD + _TEXT
WORDS = _COUNTS + 2 * _SLOTS
"""64-bit words of a record: head, text, and a table of counts."""

MOST_MEMBERS = 2 * (_HEAD - RANKS)
MOST_TEXT = 8 * (_TEXT - 1)


def shown_turns(record: Any) -> str:
    """The turns that a rank is in, for the end of a message: ", in turn 3, there in turn 0"."""
    count = min(max(0, record[LOOPS]), MOST_LOOPS)
    return "".join(f", {'there ' if i else ''}in turn {record[TURNS + i]}" for i in range(count))


def write_members(ranks: tuple[int, ...]) -> tuple[int, memoryview | None, int]:
    """(what goes to `MEMBERS`, the words from `RANKS` on, where they end) for a rank that waits for `ranks`."""
    if len(ranks) > MOST_MEMBERS:
        return -1, None, RANKS
    members = array.array("i", ranks)
    if len(members) % 2:
        members.append(-1)
    words = memoryview(members).cast("B").cast("q") if members else None
    return len(ranks), words, RANKS + len(members) // 2


def members(record: Any) -> list[int]:
    """The ranks that a rank waits for; none where they did not fit."""
    count = record[MEMBERS]
    words = record[RANKS : RANKS + (max(0, count) + 1) // 2].tolist()
    return array.array("i", array.array("q", words).tobytes()).tolist()[: max(0, count)]


# Counts


@lru_cache(maxsize=65536)
def identity(text: str) -> int:
    """A positive number for what ranks count, the same on all of them."""
    return 1 + (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 2)


def group_of(channel: int, ranks: tuple[int, ...]) -> int:
    """The identity of a group's collectives; the order of the ranks matters."""
    return identity(f"group {channel}: {ranks}")


def messages_of(channel: int) -> int:
    """The meeting of a rank that waits for messages of a channel."""
    return -1 - channel


def sent(channel: int, source: int, target: int) -> int:
    """The identity of what `source` counts of its messages to `target`."""
    return identity(f"sent {channel}: {source} {target}")


def received(channel: int, source: int, target: int) -> int:
    """The identity of what `target` counts of its messages from `source`."""
    return identity(f"received {channel}: {source} {target}")


def slot(record: Any, what: int) -> int | None:
    """The word of a record where its rank counts `what`, from now on; None where the table is full."""
    for step in range(_SLOTS):
        at = _COUNTS + 2 * ((what + step) % _SLOTS)
        if record[at] == 0:
            record[at] = what
        if record[at] == what:
            return at + 1
    return None


def count(record: Any, what: int) -> int:
    """How often a rank has begun `what`."""
    for step in range(_SLOTS):
        at = _COUNTS + 2 * ((what + step) % _SLOTS)
        if record[at] in (0, what):
            return record[at + 1] if record[at] else 0
    return 0


# Text


def write_text(record: Any, text: str) -> None:
    """Leave a text for readers, "" for none; what does not fit is cut off."""
    data = text.encode()[:MOST_TEXT]
    record[_HEAD] = 0
    words = array.array("q", data.ljust(-(-len(data) // 8) * 8, b"\0"))
    record[_HEAD + 1 : _HEAD + 1 + len(words)] = memoryview(words).cast("B").cast("q") if words else words
    record[_HEAD] = len(data)


def read_text(record: Any) -> str:
    """The text that a rank has left."""
    length = min(max(0, record[_HEAD]), MOST_TEXT)
    words = record[_HEAD + 1 : _HEAD + _TEXT].tolist()
    return array.array("q", words).tobytes()[:length].decode(errors="ignore")

"""Kinds of ranks with equal programs, from `program.json` or, for ranks without an entry, from their texts."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import inside, read_text
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.source_text import name_of
from mspc.ops.check_graph import check_graph
from mspc.runtime.program import PROGRAM, Program

OWN = re.compile(r"""^rank : .*$|group: "[^"]*"(?:, )?|rank_list: (?:\([^()]*\)|[\d:]+)(?:, )?""", re.MULTILINE)
"""The parts of a text that depend on the rank: its number, and the groups to which it belongs."""
FIELDS = re.compile(r" primitive_attrs: \{((?:[^{}]|\{[^{}]*\})*)\}|value=([^)]*)")
"""Fields of operators and constants, which may contain offsets of a rank's slice."""
OPERANDS = re.compile(r"(?<= = )(\w+)\(((?:%[\w.\[\]$/-]+(?:, )?)+)\)")
"""Operands that are no constants. Exchanges order their operands by the destination ranks."""


@dataclass
class EquivalentRanks:
    """Ranks with programs that are equal except for ranks, groups and offsets. ranks: ascending. text: of the first.
    edited: whether that text has changed since it was written."""

    text: str
    edited: bool
    ranks: list[int] = field(default_factory=list[int])


def kinds_of(program: Program, numbers_count: bool = True) -> tuple[list[EquivalentRanks], list[str]]:
    """Return the kinds of a program's ranks, ordered by their first ranks, and the files that were edited.

    For ranks that are equal according to the program one text is read, and texts that differ only in fields and
    constants are of one kind. A file that may have been edited, because it is newer than `program.json` and differs
    from its digest, is read too, and edited files have kinds of their own. For these, and for ranks without an entry in
    the program, fields and constants distinguish kinds if `numbers_count`. Raise MspcError if a file is missing, cannot
    be read or is of another compile.
    """
    written = os.stat(program.folder / PROGRAM).st_mtime_ns
    told: dict[int, EquivalentRanks] = {}
    kinds: dict[Hashable, EquivalentRanks] = {}
    edited: list[str] = []
    for rank in sorted({*program.execute, *program.kinds}):
        kind = told.get(program.kinds.get(rank, -1))
        if rank in program.execute:
            check_compile(program, rank, program.header(rank))
            path = inside(program.folder, program.execute[rank], str(program.folder / PROGRAM))
            if kind is None or not os.path.exists(path) or os.stat(path).st_mtime_ns > written:
                text = program_text(program, rank)
                changed = program.edited(rank, text)
                apart = changed or rank not in program.kinds
                key = changed, _digest(text, numbers_count) if apart else _digest(text, False)
                kind = kinds.setdefault(key, EquivalentRanks(text, changed))
                if changed:
                    edited.append(program.execute[rank])
                elif not apart:
                    told[program.kinds[rank]] = kind
        if kind is not None:
            kind.ranks.append(rank)
    return list(kinds.values()), edited


def _digest(text: str, numbers_count: bool) -> bytes:
    """Return a digest of a text without its groups and, if numbers do not count, without fields, constants and the
    order of operands."""
    text = OWN.sub("", text)
    if not numbers_count:
        plain = FIELDS.sub("", text)
        text = OPERANDS.sub(lambda found: f"{found[1]}({', '.join(sorted({*found[2].split(', ')}))})", plain)
    return hashlib.sha256(text.encode()).digest()


def check_in_file(graph: Graph, path: Path) -> None:
    """Check that a graph is consistent. Raise MspcError, with the file's path, if it is not."""
    try:
        check_graph(graph)
    except MspcError as error:
        raise MspcError(f"{path}: {error.message}", notes=error.notes, frames=error.frames) from None


_COMPILE_ID = re.compile(r'^compile_id : "(\w+)"$', re.MULTILINE)


def dump_text(path: Path) -> str:
    """Return the text of one graph. Raise MspcError if there is no such file or it cannot be read."""
    notes = ["give the folder of a compile, a graph (.ir), or a script"]
    with reading(path, "file or folder", "is not text", notes=notes):
        return read_text(path)


def program_text(program: Program, rank: int) -> str:
    """Return the text of a rank's graph. Raise MspcError if it is not of the folder's compile or cannot be read."""
    text = program.text(rank)
    check_compile(program, rank, text)
    return text


def check_compile(program: Program, rank: int, text: str) -> None:
    """Check the header of a rank's text. Raise MspcError if it is not of the folder's compile."""
    said = _COMPILE_ID.search(text)
    if said is not None and said[1] != program.compile_id:
        raise MspcError(
            f"{program.folder} holds dumps of different compiles: {program.execute[rank]} is of compile {said[1]}, "
            f"{PROGRAM} of {program.compile_id}",
            notes=["mspc compile --out DIR writes a folder as a whole"],
        )


# Values of single ranks -----------------------------------------------------------------------------


_GRAPH = re.compile(r"subgraph @(.+)\([^()]*\) \{\Z")
_NODE = re.compile(r"^  %(\d+)")
_NEXT_FIELD = re.compile(r", (?=\w+: )")
LISTED = 64
"""Most ranks for which a page contains the numbers of their own."""
_Place = tuple[str, int]
"""A graph's name in the text, and the number of a node in it."""


def own_numbers(
    program: Program, kind: Sequence[int], first_text: str
) -> dict[str, dict[int, dict[int, str]]]:
    """Return, by the name of a graph, node and rank, the text of the fields, operands and constants that differ between
    ranks of a kind. first_text: of its first rank. Raise MspcError as `program_text` does."""
    own: dict[_Place, dict[int, Mapping[str, str]]] = {}
    ranks = [rank for rank in kind if rank in program.execute][:LISTED]
    plain = OWN.sub("", first_text)
    for rank in ranks[1:]:
        text = program_text(program, rank)
        if OWN.sub("", text) != plain:
            _note(own, first_text, ranks[0], text, rank)
    found: dict[str, dict[int, dict[int, str]]] = {}
    for (graph, node), noted in sorted(own.items()):
        rows = {rank: noted.get(rank, noted[ranks[0]]) for rank in ranks}
        names = dict.fromkeys(name for row in rows.values() for name in row)
        differing = [name for name in names if len({row.get(name) for row in rows.values()}) > 1]
        if differing:
            found.setdefault(graph, {})[node] = {
                rank: ", ".join(f"{name}: {row[name]}" for name in differing if name in row)
                for rank, row in rows.items()
            }
    return found


def _note(own: dict[_Place, dict[int, Mapping[str, str]]], first_text: str, first: int, text: str, rank: int) -> None:
    """Record the nodes for which a rank's line differs from that of the kind's first rank by more than groups."""
    graph = ""
    for ours, theirs in zip(first_text.splitlines(), text.splitlines(), strict=False):
        head = _GRAPH.match(ours)
        graph = name_of(head[1]) if head else graph
        node = _NODE.match(ours)
        if node is None or ours == theirs:
            continue
        there, here = _numbers(ours), _numbers(theirs)
        if there != here:
            own.setdefault((graph, int(node[1])), {first: there})[rank] = here


def _numbers(line: str) -> dict[str, str]:
    """Return the fields, operands and constants of a node's line, by name."""
    plain = OWN.sub("", line)
    found: dict[str, str] = {}
    for fields, value in FIELDS.findall(plain):
        if not fields:
            found["value"] = value
        for item in _NEXT_FIELD.split(fields) if fields else ():
            name, _, text = item.partition(": ")
            found[name] = text.rstrip(", ")
    operands = OPERANDS.search(plain)
    return found | ({"operands": operands[2]} if operands else {})

"""Single random changes of HLO texts after XLA's partitioner: collectives, groups, operations, operands, numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from mspc.readers.stablehlo.hlo_text import groups_in

_METADATA = re.compile(r", metadata=\{[^}]*\}")
_OTHERS = {
    "add": "subtract", "subtract": "add", "multiply": "add", "maximum": "minimum", "minimum": "maximum",
    "tanh": "sine", "exponential": "tanh", "negate": "abs", "rsqrt": "sqrt",
}  # fmt: skip


def _groups(text: str) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups_in(text)}


def without_collective(line: str, drawn: random.Random) -> str:
    """Return an all-reduce or a permutation that hands its operand on."""
    return re.sub(r"(all-reduce|collective-permute)\(([^,()]+)\).*", r"copy(\2)", line)


def with_other_groups(line: str, drawn: random.Random) -> str:
    """Return a reduction over other groups of devices."""
    found = re.search(r"replica_groups=(\[(\d+),(\d+)\]<=\[[\d,]+\](?:T\([\d,]+\))?|\{\{[\d,{}]+\}\})", line)
    if found is None or "all-reduce(" not in line:
        return line
    count = int(found[2]) * int(found[3]) if found[2] else len(re.findall(r"\d+", found[1]))
    ranks, half = list(range(count)), count // 2
    drawn.shuffle(ranks)
    if count < 4 or _groups(found[1]) == {frozenset(ranks[:half]), frozenset(ranks[half:])}:
        return line
    groups = "{" + ",".join("{" + ",".join(map(str, part)) + "}" for part in (ranks[:half], ranks[half:])) + "}"
    return line.replace(found[0], f"replica_groups={groups}")


def with_other_pairs(line: str, drawn: random.Random) -> str:
    """Return a permutation whose first two targets are exchanged."""
    found = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\},\{(\d+),(\d+)\}", line)
    if found is None:
        return line
    a, b, c, d = found.groups()
    return line.replace(found[0], f"source_target_pairs={{{{{a},{d}}},{{{c},{b}}}")


def with_other_operation(line: str, drawn: random.Random) -> str:
    """Return another elementwise operation."""
    return re.sub(r"\} (\w+)\(", lambda m: f"}} {_OTHERS.get(m[1], m[1])}(", line, count=1)


def with_turned_operands(line: str, drawn: random.Random) -> str:
    """Return a difference or a quotient of the same operands in the other order."""
    return re.sub(r"(subtract|divide)\(([^,()]+), ([^,()]+)\)", r"\1(\3, \2)", line)


def with_other_number(line: str, drawn: random.Random) -> str:
    """Return a float constant with another number: another start of a whole slice changes nothing."""
    found = re.search(r"= f\d+\[\] constant\((-?[\d.]+)\)", line)
    return line if found is None else line.replace(f"({found[1]})", f"({float(found[1]) + 1:g})")


def with_other_offsets(line: str, drawn: random.Random) -> str:
    """Return a table of the devices' offsets with the first two exchanged."""
    return re.sub(r"(= s32\[\d+\]\{0\} constant\(\{)(\d+), (\d+)", r"\1\3, \2", line)


EDITS: tuple[Callable[[str, random.Random], str], ...] = (
    without_collective, with_other_groups, with_other_pairs, with_other_operation, with_turned_operands,
    with_other_number, with_other_offsets,
)  # fmt: skip


def edited(text: str, drawn: random.Random) -> tuple[str, str]:
    """Return (the text with one line changed, the change)."""
    lines = text.splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if line.startswith("ENTRY"))
    while True:
        edit = drawn.choice(EDITS)
        places: list[tuple[int, str]] = []
        for at, line in enumerate(lines):
            bare = _METADATA.sub("", line.rstrip("\n"))
            changed = edit(bare, drawn)
            if changed != bare and (at > begin or "_spmd" in line):
                places.append((at, changed))
        if places:
            at, changed = drawn.choice(places)
            note = f"line {at + 1}: {edit.__name__}: {changed.strip()}"
            place = _METADATA.search(lines[at])
            lines[at] = changed + (place[0] if place else "") + "\n"
            return "".join(lines), note

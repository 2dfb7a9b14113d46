"""The tables: which row has which name. Of a row no more is read than its names before it is asked for."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_ENDING = ".txt"
_DOC, _MORE = " " * 4, " " * 8
_ROW = re.compile(r"(?P<names>[\w. ]+?) ?(?:(?P<called>\(.*)| = (?P<name>[\w.]+))", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """One row of a table.

    path, line: where it stands. module: the public module, `ops`. names: its names, a method's behind a dot. home: the
    module that defines it, where it is only pointed to. target: its name there, or the text behind the names: a name,
    or "(parameters) = expression" over one or several lines. uses: modules of the names that the table uses.
    """

    path: str
    line: int
    module: str
    names: tuple[str, ...]
    home: str
    target: str
    uses: dict[str, str] = field(repr=False, hash=False, compare=False)

    @property
    def is_public(self) -> bool:
        """Whether it is a function of its module, and no method alone."""
        return any(not name.startswith(".") for name in self.names)

    @property
    def doc(self) -> str:
        """What is said of it below the row."""
        found: list[str] = []
        for line in _lines(self.path)[self.line + self.target.count("\n") :]:
            if line.strip() and not line.startswith(_DOC):
                break
            found.append(line[len(_DOC) :])
        return "\n".join(found).strip()


@functools.cache
def _lines(path: str) -> tuple[str, ...]:
    with open(path, encoding="utf-8") as file:
        return tuple(file.read().splitlines())


def module_of(path: str) -> str:
    """The public module of a table."""
    return os.path.basename(path).removesuffix(_ENDING).partition("-")[0]


def tables_of(module: str) -> list[str]:
    """Full paths of the tables of a public module, in order."""
    files = sorted(file for file in os.listdir(TABLES) if file.endswith(_ENDING))
    return [TABLES + file for file in files if module_of(file) == module]


@functools.cache
def rows_of(module: str) -> dict[str, Row]:
    """The rows of a public module by their names.

    Raises:
        ValueError: two rows have one name.
    """
    found: dict[str, Row] = {}
    for path in tables_of(module):
        for row in _rows_in(path, module):
            for name in row.names:
                if name in found:
                    raise ValueError(f"{path}:{row.line}: {name} stands in line {found[name].line} of {found[name].path}")
                found[name] = row
    return found


def _rows_in(path: str, module: str) -> Iterator[Row]:
    uses: dict[str, str] = {}
    lines = _lines(path)
    for number, text in enumerate(lines, 1):
        if not text or text[0] in " #":
            continue
        more = number
        while more < len(lines) and lines[more].startswith(_MORE):
            text += f"\n{lines[more]}"
            more += 1
        if text.startswith("use "):
            home, _, names = text[4:].partition(":")
            uses |= dict.fromkeys(names.split(), home)
        elif text.startswith("from "):
            home, _, names = text[5:].partition(":")
            yield from _pointing(path, number, module, home, names.split(), uses)
        elif text.startswith("modules:"):
            for name in text[8:].split():
                yield Row(path, number, module, (name,), f"mspc.api.{module}.{name}", "", uses)
        else:
            found = _ROW.fullmatch(text)
            if found is None:
                raise ValueError(f"{path}:{number}: a row is 'names(parameters) = expression' or 'names = name'")
            target = found["called"] or found["name"]
            yield Row(path, number, module, tuple(found["names"].split()), "", target, uses)


def _pointing(
    path: str, line: int, module: str, home: str, names: list[str], uses: dict[str, str]
) -> Iterator[Row]:
    """A row for every object of another module, with all its names: `clip=clamp .clip=clamp` are two of `clamp`."""
    targets: dict[str, list[str]] = {}
    for name in names:
        own, _, target = name.partition("=")
        targets.setdefault(target or own.removeprefix("."), []).append(own)
    for target, own_names in targets.items():
        yield Row(path, line, module, tuple(own_names), home, target, uses)

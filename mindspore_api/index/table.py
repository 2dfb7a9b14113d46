"""Reader of the index tables: rows by name. Only the names of a row are read until a script uses it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import field

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import index

_ENDING = ".txt"
_DOC, _MORE = " " * 4, " " * 8
OBJECTS = ("", "let", "class", "hidden")
"""Kinds of rows that are an object."""
_OF_TENSORS = tuple(f"mspc.mindspore_api.{room}" for room in ("mint.", "numpy.", "ops.function.", "ops.tensor_method"))
_ROW = re.compile(r"(?:(?P<kind>let|class) )?(?P<names>[\w. ]+?) ?(?:(?P<called>\(.*)| = (?P<name>[\w.]+))", re.DOTALL)
_TOLD = ("all", "each", "modules", "module", "absent", "lists")
"""Kinds of rows that are no object."""
_WORDS = re.compile(r"\{([^}]+)\}")

Uses = dict[str, tuple[str, str]]
"""(module, name in it) of the names that a table uses."""


@dataclass(frozen=True)
class IndexRow:
    """One row of a table.

    path, line: its place. module: the public module, `ops`. kind: "let" for a name used by other rows of the module,
    "class" for a class with a function as its instances, "hidden" for an object that `dir()` does not show, or "" for
    other objects; "all", "each", "modules", "module", "absent" and "lists" as the index describes them. names: its
    names; the name of a method begins with a dot. home: the module that defines it, if the row only refers to it.
    target: its name in `home`, or the text after the names: a name, or "(parameters) = expression" over one or several
    lines. word: for a row that defines several objects, the word of this one.
    """

    path: str
    line: int
    module: str
    kind: str
    names: tuple[str, ...]
    home: str
    target: str
    word: str
    uses: Uses = field(repr=False, hash=False, compare=False)

    @property
    def is_public(self) -> bool:
        """Return whether scripts find it in its module, not only as a method of tensors."""
        return self.kind != "let" and any(not name.startswith(".") for name in self.names)

    @property
    def is_of_tensors(self) -> bool:
        """Return whether it is a row without home, or its home is a module of tensor functions, which get checks of
        arguments."""
        return not self.home or self.home.startswith(_OF_TENSORS)

    @property
    def doc(self) -> str:
        """The description below the row."""
        found: list[str] = []
        lines = _lines(self.path)
        for line in lines[_end(lines, self.line) :]:
            if line.strip() and not line.startswith(_DOC):
                break
            found.append(line[len(_DOC) :])
        return "\n".join(found).strip().replace("{}", self.word)


@functools.cache
def _lines(path: str) -> tuple[str, ...]:
    with open(path, encoding="utf-8") as file:
        return tuple(file.read().splitlines())


def _end(lines: tuple[str, ...], line: int) -> int:
    """Return the last line of a row that begins on `line`, excluding its description."""
    while line < len(lines) and lines[line].startswith(_MORE):
        line += 1
    return line


def module_of(path: str) -> str:
    """Return the public module of a table."""
    return os.path.basename(path).removesuffix(_ENDING).partition("-")[0]


def is_table(path: str) -> bool:
    """Return whether a file is a table of the index."""
    return path.endswith(_ENDING) and os.path.dirname(path) in index.__path__


def tables_of(module: str) -> list[str]:
    """Return the full paths of the tables of a public module, sorted."""
    files = [(file, folder) for folder in index.__path__ for file in os.listdir(folder) if file.endswith(_ENDING)]
    return [os.path.join(folder, file) for file, folder in sorted(files) if module_of(file) == module]


@functools.cache
def rows_of(module: str, *kinds: str) -> dict[str, IndexRow]:
    """Return the rows of a public module by name: objects, or rows of the given kinds. Raise ValueError if two rows
    have one name, or a text is no row."""
    found: dict[str, IndexRow] = {}
    for row in _rows(module):
        for name in row.names if row.kind in (kinds or OBJECTS) else ():
            if name in found:
                other = f"{found[name].path}:{found[name].line}"
                raise ValueError(f"{row.path}:{row.line}: {name} has a row already, {other}")
            found[name] = row
    return found


@functools.cache
def _rows(module: str) -> tuple[IndexRow, ...]:
    return tuple(row for path in tables_of(module) for row in _rows_in(path, module))


def _rows_in(path: str, module: str) -> Iterator[IndexRow]:
    uses: Uses = {}
    lines = _lines(path)
    for number, text in enumerate(lines, 1):
        if not text or text[0] in " #":
            continue
        text = "\n".join((text, *lines[number : _end(lines, number)]))
        word, _, rest = text.partition(" ")
        if word == "use":
            home, _, names = rest.partition(":")
            pairs = [name.partition("=") for name in names.split()]
            uses |= {own: (home, target or own) for own, _, target in pairs}
        elif word == "from":
            yield from _pointing(path, number, module, "", rest, uses)
        elif text.startswith("hidden from "):
            yield from _pointing(path, number, module, word, rest.removeprefix("from "), uses)
        else:
            several = _WORDS.search(text)
            for own in several[1].split() if several else [""]:
                one = text if several is None else text.replace(several[0], own).replace("{}", own)
                kind = one.partition(":")[0]
                yield (_told if kind in _TOLD else _called)(path, number, module, one, own, uses)


def _called(path: str, line: int, module: str, text: str, word: str, uses: Uses) -> IndexRow:
    found = _ROW.fullmatch(text)
    if found is None:
        raise ValueError(f"{path}:{line}: a row is 'names(parameters) = expression' or 'names = name'")
    names = tuple(found["names"].split())
    return IndexRow(path, line, module, found["kind"] or "", names, "", found["called"] or found["name"], word, uses)


def _told(path: str, line: int, module: str, text: str, word: str, uses: Uses) -> IndexRow:
    """Return a row that is no object: "kind: names = target", or without a target."""
    kind, _, rest = text.partition(":")
    parts = rest.split()
    end = parts.index("=") if "=" in parts else len(parts)
    return IndexRow(path, line, module, kind, tuple(parts[:end]), "", " ".join(parts[end + 1 :]), word, uses)


def _pointing(path: str, line: int, module: str, kind: str, text: str, uses: Uses) -> Iterator[IndexRow]:
    """Yield a row for every object of another module, with all its names: `clip=clamp .clip=clamp` are two names of
    `clamp`."""
    targets: dict[str, list[str]] = {}
    home, _, names = text.partition(":")
    if not names.strip() or not all(part.isidentifier() for part in home.split(".")):
        raise ValueError(f"{path}:{line}: a row is 'from module: names' or 'hidden from module: names'")
    for name in names.split():
        own, _, target = name.partition("=")
        targets.setdefault(target or own.removeprefix("."), []).append(own)
    for target, own_names in targets.items():
        yield IndexRow(path, line, module, kind, tuple(own_names), home, target, "", uses)

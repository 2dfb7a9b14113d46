"""Strict reading of JSON and TOML: input that a standard leaves undefined is an error. JSON is written here, too,
and errors of files are reported: of reading any of them, and of parsing Python."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import Location, MspcError, did_you_mean
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.regular import check_regular

MARK = "\ufeff"
DEEP = "brackets stand too deep in brackets"


def parsed_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError if the text is empty, no UTF-8 or no JSON, has an entry twice,
    or nests brackets too deep for the reader."""
    try:
        decoded = _decoded(text)
        if not decoded.strip():
            raise ValueError("it is empty")
        return json.loads(decoded, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError(DEEP) from None


def parsed_toml(text: str | bytes) -> dict[str, Any]:
    """Return the value of a TOML text. Raise ValueError as `parsed_json`."""
    import tomllib  # late: hardly any command needs it

    try:
        return tomllib.loads(_decoded(text))
    except RecursionError:
        raise ValueError(DEEP) from None


def _decoded(text: str | bytes) -> str:
    """Return the text without the byte order mark that editors put before UTF-8. Raise ValueError if it is no UTF-8."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    return decoded.removeprefix(MARK)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"it has an entry {twice!r:.100} twice")
    return entries


LARGEST_SIZE = 1 << 62

# The functions for entries raise ValueError with the wrong entry; `where` names its owner.


def object_in(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r:.60}, not an object")
    return cast(dict[str, Any], value)


def list_in(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r:.60}, not a list")
    return cast(list[Any], value)


def entry(owner: dict[str, Any], name: str, where: str = "it") -> Any:
    """Return the entry of an object under a name."""
    try:
        return owner[name]
    except KeyError:
        raise ValueError(f"{where} has no {name!r}") from None


def text_in(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.60}, not a text")
    return value


def flag_in(value: Any, where: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {value!r:.60}, not true or false")
    return value


def whole_in(value: Any, where: str, least: int = -LARGEST_SIZE, most: int = LARGEST_SIZE) -> int:
    """Return a whole number."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where} is {value!r:.60}, not a whole number from {least} to {most}")
    return value


def number_in(value: Any, where: str) -> float:
    """Return a number: any float, or a whole number."""
    return value if type(value) is float else float(whole_in(value, where))


def texts_in(value: Any, where: str) -> tuple[str, ...]:
    """Return the texts of a list."""
    return tuple(text_in(each, where) for each in list_in(value, where))


def table_in(shown: str, found: Mapping[str, Any], key: str, name: str = "", required: bool = True) -> dict[str, Any]:
    """Return a table of a TOML file, {} for a missing one that is not required. Raise MspcError, with the file and the
    full name of the table, if there is none."""
    table = found.get(key)
    if table is None and not required:
        return {}
    if not isinstance(table, dict):
        wrong = "there is no" if table is None else f"{key} is {table!r:.60}, not a"
        raise MspcError(f"{shown}: {wrong} table [{name or key}]")
    return cast("dict[str, Any]", table)


class Written(str):
    """A value that is already JSON text, with the indentation of its place."""

    __slots__ = ()


def indented(value: Any, newline: str = "\n") -> str:
    """Return JSON with one value per line, in the format of `json.dumps(value, indent=1)`.

    `json.dumps` is slow here, since it nests Python generators and a program has thousands of entries.

    newline: the end of a line with the indentation of the value. Raise TypeError for values without a form in JSON.
    """
    kind: Any = type(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is int:
        return str(value)
    if kind is Written:
        return cast(str, value)
    inner = newline + " "
    if kind is dict and value:
        entries = [f"{encode_basestring_ascii(key)}: {indented(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(entries)}{newline}}}"
    if kind in (list, tuple) and value:
        return f"[{inner}{f',{inner}'.join([indented(item, inner) for item in value])}{newline}]"
    return json.dumps(value)


@contextmanager
def reading(
    path: Path, what: str, wrong: str = "", code: str = "E0101", kind: type[Exception] | None = None,
    notes: Sequence[str] = (), damaged: str = "",
) -> Generator[None]:  # fmt: skip
    """Raise the errors of a block that reads a file as MspcError. what: the kind of file, for messages. wrong: text for
    a ValueError of the block, after the path; "is no `what`" without it. code, kind: of the error if there is no such
    file. notes, damaged: notes and the code of the error if the content is wrong."""
    shown = shown_path(path)
    try:
        yield
    except MspcError:
        raise
    except FileNotFoundError:
        raise MspcError(f"there is no {what} {shown!r}", kind=kind, code=code) from None
    except OSError as error:
        raise MspcError(f"cannot read {shown}: {reason_of(error)}") from None
    except ValueError as error:
        message = f"{shown} {wrong or f'is no {what}'}: {error}"
        raise MspcError(message, kind=kind, notes=notes, code=damaged) from None


@contextmanager
def parsing_python(name: str) -> Generator[None]:
    """Raise the errors of a block that parses a file of Python as MspcError. name: of the file, for messages."""
    try:
        yield
    except SyntaxError as error:
        if not error.lineno:
            raise MspcError(f"{name} is not Python: {error.msg}", code="E0103") from None
        end = max(error.end_offset or 0, 0)
        where = Location(name, error.lineno, error.offset or 0, end, (error.text or "").rstrip("\n"))
        raise MspcError(f"not Python: {error.msg}", where, code="E0103") from None
    except ValueError as error:  # a null byte
        raise MspcError(f"{name} is not Python: {error}", code="E0103") from None
    except (RecursionError, MemoryError):
        raise MspcError(f"{name} is not Python: expressions are nested too deep", code="E0103") from None


def read_toml(path: Path, what: str, largest: int, as_json: bool = False, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the contents of a TOML file, or of a JSON file with an object.

    what: the kind of file, for messages. largest: the most bytes that it may have. notes: for a file that is no TOML,
    or JSON. Raise MspcError if the file does not exist, cannot be read, or is neither.
    """
    with reading(path, what, f"is no {'JSON' if as_json else 'TOML'} file", kind=ValueError, notes=notes):
        check_regular(path, largest)
        text = path.read_bytes()
        return object_in(parsed_json(text), "its content") if as_json else parsed_toml(text)


def check_keys(shown: str, found: Iterable[str], known: tuple[str, ...], of: str) -> None:
    """Raise MspcError, with the file and the nearest known key, if there is an unknown key."""
    for key in found:
        if key not in known:
            raise MspcError(f"{shown}: {of} has no key {key!r}", notes=did_you_mean(key, known), code="E0412")


def quoted(text: str) -> str:
    """Return a basic string of TOML (toml.io, version 1.0, section "String")."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'

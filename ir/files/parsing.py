"""This module reads JSON and TOML from files strictly: where a standard leaves something open, it is an error. JSON is
written here, too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.regular import check_regular

MARK = "\ufeff"
DEEP = "brackets stand too deep in brackets"


def parsed_json(text: str | bytes) -> Any:
    """What a text of JSON says.

    Raises:
        ValueError: it is empty, no UTF-8 or no JSON, has an entry twice, or brackets so deep in brackets that no reader
            has room for them.
    """
    try:
        decoded = _decoded(text)
        if not decoded.strip():
            raise ValueError("it is empty")
        return json.loads(decoded, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError(DEEP) from None


def parsed_toml(text: str | bytes) -> dict[str, Any]:
    """What a text of TOML says. Raises ValueError as `parsed_json`."""
    import tomllib  # hardly any command needs it

    try:
        return tomllib.loads(_decoded(text))
    except RecursionError:
        raise ValueError(DEEP) from None


def _decoded(text: str | bytes) -> str:
    """Without the mark that editors put before UTF-8."""
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


class Written(str):
    """A value as JSON has it, in the lines that its place asks for."""

    __slots__ = ()


def indented(value: Any, newline: str = "\n") -> str:
    """The text of objects, lists, texts and numbers with one value a line, as `json.dumps(value, indent=1)` writes it.

    That goes through them in Python, one generator inside of another, and a program has thousands of entries.

    newline: what ends a line, and indents the next as far as the value is. Raises TypeError for what JSON has not.
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


def read_toml(path: Path, what: str, largest: int) -> dict[str, Any]:
    """What a file of TOML says.

    Args:
        what: the file is, for messages. largest: bytes that it may have.

    Raises:
        MspcError: there is no such file, or it cannot be read, or is no TOML.
    """
    shown = shown_path(path)
    try:
        check_regular(path, largest)
        return parsed_toml(path.read_bytes())
    except FileNotFoundError:
        raise MspcError(f"there is no {what} {shown!r}", kind=ValueError) from None
    except OSError as error:
        raise MspcError(f"cannot read the {what} {shown}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown} is no TOML file: {error}", kind=ValueError) from None


def check_keys(shown: str, found: Iterable[str], known: tuple[str, ...], of: str) -> None:
    """Raises MspcError, naming the file and the nearest known key, where there is another than those."""
    for key in found:
        if key not in known:
            raise MspcError(f"{shown}: there is no {key!r} of {of}", notes=did_you_mean(key, known))


def quoted(text: str) -> str:
    """A basic string of TOML (toml.io, version 1.0, section "String")."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'

"""This module reads files of TOML, and writes a string as TOML has it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import parsed_toml
from mspc.ir.files.regular import check_regular
from mspc.ir.nearest import did_you_mean


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

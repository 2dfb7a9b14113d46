"""How a string stands in TOML."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A basic string of TOML (toml.io, version 1.0, section "String")."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'

"""This module answers for names of MindSpore that mspc lacks: what to write instead, or why there is no such thing."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.api.index.table import IndexRow, rows_of


def absent_names() -> dict[str, IndexRow]:
    """The rows by names without the first (`nn.Tril`)."""
    return rows_of("mspc", "absent")


def said_of(path: str, prefix: str = "") -> str:
    """What the index says of a name without the first, or of what it is below; "" where that is nothing. What it
    says of a name of `ops` counts in all modules of `ops`.

    prefix: what is ahead of a name to write instead, "mindspore.".
    """
    parts, rows = path.split("."), absent_names()
    places = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if parts[0] == "ops" and ".".join(parts[:-1]) in rows_of("mspc", "module"):
        places.append(f"ops.{parts[-1]}")
    row = next((rows[place] for place in places if place in rows), None)
    if row is None:
        return ""
    return f"write {prefix}{row.target}" if row.target else " ".join(row.doc.split())


def why_absent(path: str, known: Iterable[str]) -> str:
    """The message for a name that mspc lacks, `nn.Tril` without the first: what stands for it, why there is none, or
    the known names that are most like it; "" where nothing is known."""
    from mspc.ir.diagnostics import nearest  # only on the way to an error

    said = said_of(path)
    if said:
        return f"; {said}"
    found = nearest(path.rpartition(".")[2], known)
    return f"; did you mean {' or '.join(found)}?" if found else ""

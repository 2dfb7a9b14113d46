"""What a notebook is shown: the names of its cells in positions, tables, errors without the lines of mspc's own."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def cell_name(file: str) -> str:
    """`In[3]` for the file that stands for a cell of IPython, "" for others."""
    shell = running_shell()
    described = shell.compile.format_code_name(file) if shell is not None else None
    return str(described[1]) if described else ""


def running_shell() -> Any:
    """The shell of IPython in which this process runs; None where it runs in none. Nothing is imported for it."""
    library = sys.modules.get("IPython")
    return library.get_ipython() if library is not None and hasattr(library, "get_ipython") else None


def is_notebook() -> bool:
    """Whether a notebook shows what is written: streams are no terminal there, yet lines may be written over."""
    return hasattr(running_shell(), "kernel")


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in HTML."""
    head = "".join(f"<th>{_escaped(each)}</th>" for each in headings)
    body = "".join("<tr>" + "".join(f"<td>{_escaped(each)}</td>" for each in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if headings else ""
    return f"<table><caption>{_escaped(title)}</caption>{top}<tbody>{body}</tbody></table>"


def _escaped(value: Any) -> str:
    return html.escape(str(value))

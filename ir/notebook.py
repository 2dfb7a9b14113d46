"""This module is for notebooks: positions name their cells, tables are HTML, and errors leave out the lines of mspc's
own.
"""

from __future__ import annotations

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
    from html import escape  # only where a notebook asks

    def row_of(kind: str, values: Iterable[Any]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(str(value))}</{kind}>" for value in values) + "</tr>"

    top = f"<thead>{row_of('th', headings)}</thead>" if headings else ""
    body = "".join(row_of("td", row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{top}<tbody>{body}</tbody></table>"

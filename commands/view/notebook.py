"""`mspc.view(...)` shows the page of `mspc view` in the cell of a notebook."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mspc.commands.compile import CompileOptions
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from mspc.ir.files.atomic_writing import utf8_bytes, write_atomically

HEIGHT = 720
"""Pixels of the frame in a notebook."""


class View:
    """A page. html: its complete text, as `mspc view` writes it."""

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raise MspcError if it cannot be written."""
        content = utf8_bytes(self.html)
        write_atomically(Path(file), lambda opened: opened.write(content))

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the page in a sandboxed frame that may run scripts and nothing else."""
        return (
            f'<iframe sandbox="allow-scripts" width="100%" height="{HEIGHT}" style="border: 1px solid #ccc" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


def view(
    target: str | os.PathLike[str], *, ranks: int | None = None, inputs: Sequence[str] = (), machine: str = "",
    profile: str | os.PathLike[str] | None = None, proof: str | os.PathLike[str] | None = None,
) -> View:  # fmt: skip
    """Show a compile as `mspc view` does.

    Args:
        target: the folder of a compile, an .ir file, a script, or a network in one ("net.py:Net(32, 16)").
        ranks, inputs: of a script, as `--ranks` and `--input`. machine: that times are predicted for, "" for H200s.
        profile: a file of `mspc run --profile`. proof: one of `mspc verify --scale TARGET --json FILE`.

    Raises:
        MspcError: as `mspc view` does.
    """
    options = ViewOptions(
        CompileOptions(ranks=ranks, inputs=tuple(inputs)), machine, None if profile is None else Path(profile),
        None if proof is None else Path(proof),
    )  # fmt: skip
    return View(html_of(facts_of(os.fspath(target), options)))

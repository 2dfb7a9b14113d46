"""`mspc demo` writes a small project and carries out its README step by step."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from mspc.ir.diagnostics import PIPE_CLOSED, ExecutionError, MspcError, listed

PROJECT = {"net.py": "net.py.txt", "README.md": "README.md"}
"""Files of the project, and the names that they have in the package."""


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="A new or empty folder.")] = Path("mspc-demo"),
) -> None:
    """Write a small project, compile, verify, view and search it, and explain each step."""
    write_project(folder)
    print(f"The project is in {folder}: {', '.join(PROJECT)}.\n")
    for block in (folder / "README.md").read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("```"):
            for line in block.splitlines()[1:-1]:
                print(f"{line}\n", flush=True)
                carry_out(line.removeprefix("$ mspc ").split(), folder)
                print()
        else:
            print_paragraph(block)


def write_project(folder: Path) -> None:
    """Write the files of the project. Raise MspcError if the folder is not empty, or cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise MspcError(f"{folder} is a file", notes=["give a new folder: mspc demo FOLDER"], code="E0115")
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if found:
        notes = ["give a new folder: mspc demo FOLDER"]
        raise MspcError(f"the folder {folder} is not empty: it has {listed(found, 3)}", notes=notes, code="E0115")
    folder.mkdir(parents=True, exist_ok=True)
    for name, stored in PROJECT.items():
        text = resources.files("mspc.commands").joinpath("demo", stored).read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")


def carry_out(arguments: list[str], folder: Path) -> None:
    """Run a command of mspc in the folder. Raise ExecutionError if it fails, and Exit if nobody reads its output."""
    done = subprocess.run([sys.executable, "-P", "-m", "mspc", *arguments], cwd=folder, check=False)
    if done.returncode == PIPE_CLOSED:
        raise typer.Exit(PIPE_CLOSED)
    if done.returncode:
        raise ExecutionError(f"mspc {' '.join(arguments)} ended with status {done.returncode}")


def print_paragraph(text: str) -> None:
    """Print a paragraph or a heading of the README in lines as wide as the terminal."""
    from mspc.commands.report.tables import line_width

    words = text.lstrip("# ") if text.startswith("#") else text.replace("\n", " ")
    lines = textwrap.wrap(words, line_width(), break_long_words=False, break_on_hyphens=False)
    print("\n".join([*lines, "-" * len(lines[-1])] if text.startswith("#") else [*lines, ""]))

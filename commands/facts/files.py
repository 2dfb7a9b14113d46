"""This module reads the texts of a compile's files for commands that show or compare compiles."""

from __future__ import annotations

import re
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.regular import read_text
from mspc.runtime.program import PROGRAM, Program

_COMPILE_ID = re.compile(r'^compile_id : "(\w+)"$', re.MULTILINE)


def dump_text(path: Path) -> str:
    """The text of one graph. Raises MspcError."""
    try:
        return read_text(path)
    except FileNotFoundError:
        raise MspcError(f"there is no file or folder {shown_path(path)!r}") from None
    except UnicodeDecodeError:
        notes = ["what can be read is the folder of a compile, a graph (.ir), a script"]
        raise MspcError(f"{shown_path(path)} is not text", notes=notes) from None
    except OSError as error:
        raise MspcError(f"cannot read {shown_path(path)}: {error.strerror}") from None
    except ValueError:
        raise MspcError(f"{str(path)!r} names no file") from None


def program_text(program: Program, rank: int) -> str:
    """The text of a rank's graph, which is of the compile that the folder is of. Raises MspcError."""
    text = program.text(rank)
    _check_said(program, rank, text)
    return text


def check_compile(program: Program, rank: int) -> None:
    """See by the header of a rank's file that it is of the compile that the folder is of. Raises MspcError."""
    _check_said(program, rank, program.header(rank))


def _check_said(program: Program, rank: int, text: str) -> None:
    said = _COMPILE_ID.search(text)
    if said is not None and said[1] != program.compile_id:
        raise MspcError(
            f"{program.folder} holds dumps of different compiles: {program.execute[rank]} is of compile {said[1]}, "
            f"{PROGRAM} of {program.compile_id}",
            notes=["mspc compile --out DIR writes a folder as a whole"],
        )

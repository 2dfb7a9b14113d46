"""Runs a user's script as `python script.py` would, and reports its errors with its own lines."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.machinery
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from mspc.ir.diagnostics import Location, MspcError, broken_text
from mspc.ir.files.regular import check_regular
from mspc.mindspore_api.communication.group import get_local_rank, get_rank
from mspc.mindspore_api.errors import at_users_line, is_library, raising_location


class ScriptError(MspcError):
    """An exception that the user's own code raised, shown with the user's own frames."""

    class_code = "E0120"

    def __init__(self, error: BaseException) -> None:
        lacking = _names_lacking(error)
        super().__init__(_summary(error)[-1], notes=lacking, code="E1004" if lacking else "")
        self.error = error

    def render(self, width: int | None = None) -> str:
        notes = [line for note in self.notes for line in broken_text(f"  note: {note}", width)]
        return "\n".join([*_summary(self.error), *notes])


def source_of(path: Path) -> bytes:
    """The text of a script; its lines are remembered for messages, whatever the script does to its file.

    Raises:
        MspcError: the file is missing or cannot be read.
    """
    try:
        check_regular(path)
        found = path.read_bytes()
    except FileNotFoundError:
        raise MspcError(f"there is no script {str(path)!r}", code="E0101") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise MspcError(f"cannot read the script {str(path)!r}: {why}") from None
    linecache.checkcache(str(path))
    linecache.getlines(str(path))
    return found


@lru_cache(maxsize=4)
def _compiled(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def read_script(path: Path) -> CodeType:
    """The compiled code of a script.

    Raises:
        MspcError: the file is missing, is no text, or is not Python.
    """
    source = source_of(path)
    try:
        return _compiled(source, str(path))
    except SyntaxError as error:
        text = (error.text or "").rstrip("\n")
        end = error.end_offset or 0
        where = Location(str(path), error.lineno or 1, error.offset or 0, end if end > 0 else 0, text)
        if not error.lineno:
            raise MspcError(f"{path} is not Python: {error.msg}", code="E0103") from None
        raise MspcError(f"not Python: {error.msg}", where, code="E0103") from None
    except ValueError as error:  # a null byte
        raise MspcError(f"{path} is not Python: {error}", code="E0103") from None
    except (RecursionError, MemoryError):
        raise MspcError(f"{path} is not Python: expressions are nested too deep", code="E0103") from None


def name_of(path: Path) -> str:
    """Return the name of the module that a file defines: with its packages, if it imports from these by dots."""
    try:
        tree = ast.parse(source_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return path.stem  # errors are reported when it is run
    if not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        return path.stem
    folder, parts = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def run_script_as(name: str, path: Path, arguments: Sequence[str]) -> ModuleType:
    """Run the script as module `name`: "__main__", or another name to only make its definitions. For a member of a
    package, as `name_of` has it, the package is imported first.

    `sys.argv`, `sys.path[0]` and `sys.modules` are as under `python script.py`, and stay so: functions of the script
    may be called later. The working folder is left alone.

    Raises:
        ScriptError: the script raised an exception. MspcError: mistakes found by mspc. Exceptions that are no errors
            (SystemExit, KeyboardInterrupt) pass through.
    """
    code = read_script(path)
    module = ModuleType(name)
    about: dict[str, Any] = {
        "__file__": str(path),
        "__builtins__": __builtins__,
        "__loader__": importlib.machinery.SourceFileLoader(name, str(path)),
        "__cached__": None,
        "__annotations__": {},
    }
    module.__dict__.update(about)
    package = name.removesuffix(f".{path.stem}") if name.endswith(f".{path.stem}") else ""
    sys.argv = [str(path), *arguments]
    _put_first(str(path.resolve().parents[len(package.split(".")) if package else 0]))
    try:
        if package:
            importlib.import_module(package)
            module.__package__ = package
        sys.modules[name] = module
        exec(code, module.__dict__)  # the user's program: running it is the command
    except MspcError as error:
        at_users_line(error)
        raise
    except Exception as error:
        raise ScriptError(error) from None
    return module


def _put_first(folder: str) -> None:
    """Make a script's folder the first entry of `sys.path`.

    Under `python -P`, as ranks are started, no entry is reserved for it: the first one may be of PYTHONPATH.
    """
    if sys.flags.safe_path:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    else:
        sys.path[0] = folder


def forget_script(path: Path) -> None:
    """Release the objects of a script of which nothing is called any more: its network holds all its tensors.

    Objects that first values still need stay, and the rest goes with the next garbage collection.
    """
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
            if name == "__main__":  # there is one in every process
                sys.modules[name] = ModuleType(name)


def _names_lacking(error: BaseException) -> list[str]:
    """All names of MindSpore that mspc lacks in the file that failed for one of them, each with its line. Other files
    are hardly read for it: an error does not wait for a scan of a large tree, which `mspc doctor` makes."""
    if not isinstance(error, ImportError | AttributeError):
        return []
    from mspc.doctor.program import PUBLIC  # late, as the imports that follow: only on the way to an error

    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] not in PUBLIC:
        return []
    place = raising_location(error)
    if place is None:
        return []
    from mspc.doctor.examination import examine_alone, lacking

    try:
        found = [finding for finding in lacking(examine_alone(Path(place.file))) if finding.file == place.file]
    except MspcError:
        return []
    return [finding.sentence for finding in found] if any(each.line == place.line for each in found) else []


def _summary(error: BaseException) -> list[str]:
    """The lines that Python prints for an exception, without the frames of libraries and of mspc."""
    found = traceback.TracebackException.from_exception(error)
    chained: traceback.TracebackException | None = found
    while chained is not None:
        own = [frame for frame in chained.stack if not is_library(frame.filename)]
        chained.stack = traceback.StackSummary.from_list(own)
        chained = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
    return "".join(found.format()).rstrip("\n").split("\n")


# A script may read its rank only for a name: of a folder of checkpoints, or in a printed text.
#
# A value made of the rank may decide anything, so that the script is run for other ranks too. Not if the number goes,
# in the very expression that asks for it, into a text or a path and from there to something that only names files or
# writes to the screen: `ModelCheckpoint(directory=f"rank_{get_rank()}")`, `print("rank", get_rank())`.


ASKING = (get_rank, get_local_rank)
TEXTS = (str, repr, os.path.join, Path)
"""Functions that make a text or a path of their arguments and nothing else."""
WRITING = (print, os.makedirs)
"""Functions that take a text and return nothing."""
NAMING = ("mspc.mindspore_api.train.checkpointing", "ModelCheckpoint")
"""The callback whose arguments name files."""


def only_named(frame: FrameType | None) -> bool:
    """Whether the line of a script that runs below `frame` asks for its rank for a name alone."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    calls, parents = _read(frame.f_code.co_filename)
    node: ast.AST | None = calls.get((first, last, begin, end))
    if not isinstance(node, ast.Call) or not callable(called := _meant(node.func, frame)):
        return False
    if not _is_one(inspect.unwrap(called), ASKING):
        return False
    while (parent := parents.get(node)) is not None:
        match parent:
            case ast.FormattedValue() | ast.JoinedStr() | ast.keyword():
                pass
            case ast.BinOp() if isinstance(parent.right if node is parent.left else parent.left, ast.Constant):
                pass
            case ast.Call() if node is not parent.func:
                called = _meant(parent.func, frame)
                if _is_one(called, WRITING) or _is_naming(called):
                    return True
                if not _is_one(called, TEXTS) and not _is_format(parent.func):
                    return False
            case _:
                return False
        node = parent
    return False


def _is_one(called: Any, among: Sequence[Any]) -> bool:
    """Identity, as objects of a script may compare as they like."""
    return any(called is each for each in among)


def _is_naming(called: Any) -> bool:
    module = sys.modules.get(NAMING[0])
    return module is not None and called is getattr(module, NAMING[1])


def _is_format(function: ast.expr) -> bool:
    text = function.value if isinstance(function, ast.Attribute) and function.attr == "format" else None
    return isinstance(text, ast.Constant)


def _meant(function: ast.expr, frame: FrameType) -> Any:
    """The object of a name, or of a name in a module, in the frame of a script; None for anything else."""
    if isinstance(function, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if function.id in names:
                return names[function.id]
    if isinstance(function, ast.Attribute):
        owner = _meant(function.value, frame)
        return getattr(owner, function.attr, None) if isinstance(owner, ModuleType) else None
    return None


@lru_cache(maxsize=64)
def _read(file: str) -> tuple[dict[Any, ast.Call], dict[ast.AST, ast.AST]]:
    """(the calls of a file by their places, the expression or statement around each expression)."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}, {}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    calls = {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node
        for node in parents if isinstance(node, ast.Call)
    }  # fmt: skip
    return calls, parents

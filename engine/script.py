"""Execution of a user's script as `python script.py` would, with errors reported at the script's lines."""

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

from mspc.ir.diagnostics import MspcError, broken_text
from mspc.ir.files.parsing import parsing_python, reading
from mspc.ir.files.regular import check_regular
from mspc.mindspore_api.communication.group import get_local_rank, get_rank
from mspc.mindspore_api.errors import at_users_line, is_library, raising_location


class ScriptError(MspcError):
    """An exception raised by the user's own code, shown with the user's frames."""

    class_code = "E0120"

    def __init__(self, error: BaseException) -> None:
        lacking = _missing_names(error)
        super().__init__(_summary(error)[-1], notes=lacking, code="E1004" if lacking else "")
        self.error = error

    def render(self, width: int | None = None) -> str:
        notes = [line for note in self.notes for line in broken_text(f"  note: {note}", width)]
        return "\n".join([*_summary(self.error), *notes])


def source_of(path: Path) -> bytes:
    """Return the text of a script; its lines are cached for messages, even if the script changes its file. Raise
    MspcError if the file is missing or cannot be read."""
    with reading(path, "script"):
        check_regular(path)
        found = path.read_bytes()
    linecache.checkcache(str(path))
    linecache.getlines(str(path))
    return found


@lru_cache(maxsize=4)
def _compiled(source: bytes, path: str) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def read_script(path: Path) -> CodeType:
    """Return the compiled code of a script. Raise MspcError if the file is missing, not text, or not Python."""
    source = source_of(path)
    with parsing_python(str(path)):
        return _compiled(source, str(path))


def name_of(path: Path) -> str:
    """Return the name of the module that a file defines, including its packages if it uses relative imports."""
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
    """Run the script as module `name`: "__main__", or another name to only execute its definitions. If `name_of` gives
    a package, the package is imported first.

    `sys.argv`, `sys.path[0]` and `sys.modules` are set as by `python script.py` and stay so, because functions of the
    script may be called later. The working folder is unchanged. Raise ScriptError if the script raised an exception,
    MspcError for mistakes found by mspc. Exceptions that are not errors (SystemExit, KeyboardInterrupt) pass through.
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

    Under `python -P`, with which ranks are started, no entry is reserved for it: the first one may come from
    PYTHONPATH.
    """
    if sys.flags.safe_path:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    else:
        sys.path[0] = folder


def forget_script(path: Path) -> None:
    """Release the objects of a script that is no longer called: its network holds all its tensors.

    Objects needed by pending initial values stay; the rest is freed by the next garbage collection.
    """
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
            if name == "__main__":  # there is one in every process
                sys.modules[name] = ModuleType(name)


def _missing_names(error: BaseException) -> list[str]:
    """Return all names of MindSpore that mspc lacks in the file that failed for one of them, with their lines. Other
    files are not scanned, which would delay the error; `mspc doctor` scans them."""
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
    """Return the lines that Python prints for an exception, without the frames of libraries and mspc."""
    found = traceback.TracebackException.from_exception(error)
    chained: traceback.TracebackException | None = found
    while chained is not None:
        own = [frame for frame in chained.stack if not is_library(frame.filename)]
        chained.stack = traceback.StackSummary.from_list(own)
        chained = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
    return "".join(found.format()).rstrip("\n").split("\n")


# A script may use its rank only in a name: of a folder of checkpoints, or in a printed text.
#
# A value computed from the rank may affect the network, so that the script is also run for other ranks. This is not
# needed if, within one expression, the rank only becomes part of a text or a path that names files or is printed:
# `ModelCheckpoint(directory=f"rank_{get_rank()}")`, `print("rank", get_rank())`.


ASKING = (get_rank, get_local_rank)
TEXTS = (str, repr, os.path.join, Path)
"""Functions that only make a text or a path from their arguments."""
WRITING = (print, os.makedirs)
"""Functions that consume a text and return None."""
NAMING = ("mspc.mindspore_api.train.checkpointing", "ModelCheckpoint")
"""The callback whose arguments name files."""


def is_rank_used_only_in_names(frame: FrameType | None) -> bool:
    """Return whether the line of a script that runs below `frame` uses its rank only in names."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    calls, parents = _read(frame.f_code.co_filename)
    node: ast.AST | None = calls.get((first, last, begin, end))
    if not isinstance(node, ast.Call) or not callable(called := _object_named(node.func, frame)):
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
                called = _object_named(parent.func, frame)
                if _is_one(called, WRITING) or _is_naming(called):
                    return True
                if not _is_one(called, TEXTS) and not _is_format(parent.func):
                    return False
            case _:
                return False
        node = parent
    return False


def _is_one(called: Any, among: Sequence[Any]) -> bool:
    """Return whether an object is one of some, by identity, because the script may define `__eq__`."""
    return any(called is each for each in among)


def _is_naming(called: Any) -> bool:
    module = sys.modules.get(NAMING[0])
    return module is not None and called is getattr(module, NAMING[1])


def _is_format(function: ast.expr) -> bool:
    text = function.value if isinstance(function, ast.Attribute) and function.attr == "format" else None
    return isinstance(text, ast.Constant)


def _object_named(function: ast.expr, frame: FrameType) -> Any:
    """Return the object of a name, or of a name in a module, in the frame of a script; None for anything else."""
    if isinstance(function, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if function.id in names:
                return names[function.id]
    if isinstance(function, ast.Attribute):
        owner = _object_named(function.value, frame)
        return getattr(owner, function.attr, None) if isinstance(owner, ModuleType) else None
    return None


@lru_cache(maxsize=64)
def _read(file: str) -> tuple[dict[Any, ast.Call], dict[ast.AST, ast.AST]]:
    """Return (the calls of a file by position, the enclosing expression or statement of each expression)."""
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

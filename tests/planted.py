"""Plants errors in the code of this process, and verifies networks in processes of their own."""

import contextlib
import importlib
import io
import linecache
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.compiled_scripts import QUIET
from tests.mutation.changes import put_in, remembered
from tests.mutation.processes import forked

PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Planted:
    """An error: `old` is once in `file` of the package, `new` takes its place.

    free: a network that it does not touch, and the reason. daily: whether normal runs look for it.
    """

    name: str
    file: str
    old: str
    new: str
    free: Sequence[str] = ()
    daily: bool = False


def plant(planted: Planted) -> None:
    """Change the functions of this process as they are in a file with the error.

    Raises:
        ValueError: the text is not in the file exactly once, or not inside of a function.
    """
    path = PACKAGE / planted.file
    text = path.read_text(encoding="utf-8")
    if text.count(planted.old) != 1:
        raise ValueError(f"{planted.name}: {planted.file} has its text {text.count(planted.old)} times, not once")
    module = importlib.import_module(".".join(["mspc", *Path(planted.file).with_suffix("").parts]))
    own = str(module.__file__)
    before, after = (_numbered(compile(t, own, "exec")) for t in (text, text.replace(planted.old, planted.new)))
    changed = {name for name, code in after.items() if name in before and not _alike(before[name], code)}
    if not changed:
        raise ValueError(f"{planted.name}: its text is not inside of a function")
    changed_text = text.replace(planted.old, planted.new)
    linecache.cache[own] = len(changed_text), None, changed_text.splitlines(True), own  # the front end reads texts
    put_in({own: {(before[n].co_name, before[n].co_firstlineno): after[n] for n in changed}})


def _numbered(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """Return all functions of a module's code by their qualified names and, of those of one name, their places."""
    counts, found = Counter[str](), {}
    for inner in _codes(code):
        found[inner.co_qualname, counts[inner.co_qualname]] = inner
        counts[inner.co_qualname] += 1
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)


def _alike(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two functions do the same, wherever they are in a file."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        code = isinstance(a, types.CodeType) and isinstance(b, types.CodeType)
        if not (_alike(a, b) if code else type(a) is type(b) and a == b):
            return False
    return True


@dataclass(frozen=True)
class Case:
    """An error in a network.

    plant: changes the code of this process. script: of the network. ranks: how many. judge: "ranks", "torch",
    "steps" (the training steps of `tests/oracle`), "scale", or "folder" (the same of a folder).
    """

    name: str
    plant: Callable[[], None]
    script: Path
    ranks: int
    judge: str = "ranks"


def outcomes(cases: Sequence[Case], jobs: int = 1) -> Iterator[tuple[Case, str, str]]:
    """Every case with "equal", "differs" or why it could not be judged, and the last thing that verify says."""
    importlib.import_module("mspc.commands.verify")  # a process that only lists errors needs none of it
    with remembered():
        for number, given in forked([lambda case=case: _outcome(case) for case in cases], jobs):
            kind, said = given if isinstance(given, list) else (f"ended with status {given}", "")
            yield cases[number], kind, said


def _judged_steps() -> tuple[str, str]:
    """The outcome of the training steps that networks share, beside PyTorch's and their formulas."""
    import torch

    from tests.oracle.step_cases import cases, judged

    wrong = [case.name for case in cases() if not judged(case, torch).same]
    return ("differs", ", ".join(wrong)) if wrong else ("equal", "")


def _outcome(case: Case) -> tuple[str, str]:
    from mspc.commands.compile import CompileOptions, compile_target
    from mspc.commands.verify import verify_scale, verify_target
    from mspc.ir.diagnostics import ExecutionError, MspcError

    case.plant()
    if case.judge == "steps":
        return _judged_steps()
    sys.argv = [str(case.script)]
    options = CompileOptions(ranks=case.ranks, loudness=QUIET)
    said = io.StringIO()
    kind: Any = "equal"
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            if case.judge == "scale":
                verify_scale(str(case.script), options, 0)
            elif case.judge == "folder":
                with TemporaryDirectory() as folder:
                    compile_target(str(case.script), replace(options, out=Path(folder)))
                    verify_scale(folder, options, 0)
            else:
                verify_target(str(case.script), options, 0, case.judge == "torch", case.judge == "mpi")
    except ExecutionError as error:
        kind = "differs"
        said.write(" ".join(["", *error.notes]))
    except MspcError as error:
        return f"fails: {error.message}", ""
    except Exception as error:
        return f"fails: {type(error).__name__}: {error}", ""
    return kind, said.getvalue().strip().replace("\n", " ")

"""Capture of the graph to compile: runs a script up to its first launch, or builds a named network."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mspc.engine.script import ScriptError, name_of, run_script_as, source_of
from mspc.ir.diagnostics import Location, MspcError, did_you_mean
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import LARGEST_SIZE, number_of
from mspc.ir.types import DTYPES, TensorType, Type, dtype_of, is_too_large
from mspc.mindspore_api import alias, call_handler, state
from mspc.mindspore_api.context import FrozenContext, ParallelMode, freeze
from mspc.mindspore_api.errors import at_users_line, caller_location
from mspc.mindspore_api.nn.cell_state import is_open
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.settings import SHARDED
from mspc.ops.collective.base import Collective
from mspc.ops.collective.one_rank import EqualRanks


@dataclass(frozen=True)
class CapturedCall:
    """The first launch of a script.

    target: the cell or function. args: its tensors as passed on one rank, or global types if `global_types`. context:
    the settings at that moment. script: the file. later: later launches, which are not compiled. place: the innermost
    line of the script in the launch.
    """

    target: Any
    args: tuple[Any, ...]
    context: FrozenContext
    script: Path
    global_types: bool = False
    later: tuple[Location, ...] = ()
    place: Location | None = None

    @contextlib.contextmanager
    def errors_at_launch(self) -> Generator[None]:
        """Report errors that only have locations in mspc's own files at the script's line."""
        try:
            yield
        except MspcError as error:
            at_users_line(error, self.place)
            raise


class _Stop(BaseException):
    """Raised to leave the script at its first launch; a BaseException, so that the script's handlers do not catch
    it."""


class _Recorder:
    """Call handler that records the first launch and stops the script."""

    types_only = True

    def __init__(self) -> None:
        self.seen: tuple[Any, tuple[Any, ...], FrozenContext, Location | None, Location | None] | None = None

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        if self.seen is None:
            self.seen = target, args, freeze(target), _top_line(sys._getframe(1)), caller_location()
        raise _Stop

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        return None if args is None else self.call(target, args)

    def gather_numbers(self, number: float, what: str = "", note: str = "") -> list[float]:
        return [number]

    def collective(self, op: Collective, types: Sequence[Type], arrays: Sequence[Any]) -> Any:
        """Return the result of a collective if all ranks pass the same operands; no other rank runs."""
        from mspc.engine.job import run_alone  # late: it brings the runtime along

        session = state.current()
        say_once(
            "collective",
            f"{op.name} is called outside a network, and no other rank runs: it returns its result for equal values "
            "on all ranks",
        )
        return run_alone(op, types, arrays, EqualRanks(session.rank, session.size))

    def steps(self) -> dict[str, int]:
        return {}

    def resume_steps(self, steps: dict[str, int]) -> None:
        """Do nothing: no graph runs."""

    def synchronize(self) -> None:
        """Do nothing: no step is in flight."""

    def operations(self) -> tuple[float, float, float, float]:
        return (0.0, 0.0, 0.0, 0.0)

    def peak_memory(self) -> int:
        return 0


def capture(path: Path, arguments: Sequence[str], session: state.Session) -> CapturedCall:
    """Run the script in `session` up to its first launch. Raise MspcError if the script is missing, fails, or ends
    without calling a network."""
    recorder = _Recorder()
    _prepare(session, recorder)
    source = source_of(path)
    try:
        with _restoring_process_state():
            run_script_as("__main__", path, arguments)
    except _Stop:
        pass
    except SystemExit as error:
        if recorder.seen is None and error.code not in (None, 0):
            raise MspcError(f"{path} exited with {error.code!r} before it called a network") from None
    except ScriptError:
        if recorder.seen is None:
            raise
    if recorder.seen is None:
        raise MspcError(
            f"{path} ends without calling a network, so there is nothing to compile",
            notes=[
                "call Model.train, a train step or a cell at the end of the script",
                f"or name the network: mspc compile '{path}:Net()' --input 'float32[16,32]'",
            ], code="E0102",
        )
    target, args, context, line, place = recorder.seen
    recorder.seen = None  # the handler outlives the capture, and would keep the network alive
    later = _later_launches(sys.modules["__main__"], path, source, line) if line else ()
    found = CapturedCall(target, args, context, path, later=later, place=place)
    with found.errors_at_launch():
        return replace(found, args=_with_sizes(target, args, context, session.size))


def _with_sizes(target: Any, args: tuple[Any, ...], context: FrozenContext, ranks: int) -> tuple[Any, ...]:
    """Return the arguments of a launch with concrete sizes for tensors declared without sizes."""
    if not any(map(is_open, args)):
        return args
    from mspc.compiler.config import Config  # late: few scripts compile values without sizes
    from mspc.compiler.driver import compile_call
    from mspc.compiler.in_memory import compiled_for_declared

    config = Config.from_context(context, ranks)

    def tried(sized: Sequence[Any]) -> tuple[Any, ...]:
        compile_call(target, sized, config)
        return tuple(sized)

    return compiled_for_declared(target, args, config.ranks, tried)


@dataclass(frozen=True)
class NamedTarget:
    """Parsed form of `net.py:Net(32, bias=True)`."""

    path: Path
    name: str
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]


def parse_target(text: str) -> NamedTarget | Path:
    """Return the network that `text` names, or the path of a script. Raise MspcError if the text after `.py:` is not a
    call with literal arguments."""
    match = re.fullmatch(r"(.*\.py):(.+)", text, re.DOTALL)
    if match is None:
        return Path(text)
    refused = MspcError(
        f"cannot read {match[2]!r} as a network",
        notes=["write a class and literal arguments: 'net.py:Net(32, 16, bias=True)'"],
    )
    try:
        call = ast.parse(match[2].strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return NamedTarget(Path(match[1]), call.id, (), ())
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise refused
        args = tuple(ast.literal_eval(arg) for arg in call.args)
        keywords = tuple((word.arg, ast.literal_eval(word.value)) for word in call.keywords if word.arg is not None)
    except (SyntaxError, ValueError):
        raise refused from None
    if len(keywords) < len(call.keywords):
        raise refused
    return NamedTarget(Path(match[1]), call.func.id, args, keywords)


def parse_input(text: str) -> TensorType:
    """Return the type that a text such as `float32[16,32]` names; `int64[]` is a scalar. Raise MspcError if `text` is
    not a type."""
    match = re.fullmatch(r"\s*(\w+)\s*\[\s*((?:\d+\s*(?:,\s*\d+\s*)*,?)?)\s*\]\s*", text)
    if match is None:
        raise MspcError(
            f"cannot read {text!r} as an input", notes=["write an element type and a shape: float32[16,32]"]
        )
    if match[1].lower() not in {name.lower() for name in DTYPES}:
        names = [name.lower() for name in DTYPES]
        notes = [*did_you_mean(match[1], names), f"known are {', '.join(names)}"]
        raise MspcError(f"{text!r}: unknown element type {match[1]!r}", notes=notes, code="E0118")
    sizes = [number_of(size, LARGEST_SIZE) for size in re.findall(r"\d+", match[2])]
    shape = tuple([size for size in sizes if size is not None])
    if len(shape) < len(sizes) or is_too_large(shape):
        raise MspcError(f"{text!r:.100} has more elements than any memory holds")
    return TensorType(dtype_of(match[1]), shape)


def build(target: NamedTarget, inputs: Sequence[str], session: state.Session) -> CapturedCall:
    """Build the named network and capture its call with global inputs of the given types, with the settings of its
    file; in semi-automatic mode unless that sets a parallel mode. Raise MspcError if the file, the name or the
    arguments are wrong."""
    types = tuple(parse_input(text) for text in inputs)
    _prepare(session, _Recorder())
    network = build_target(target)
    return CapturedCall(network, types, _context_of(network), target.path, global_types=True)


def build_target(target: NamedTarget) -> Any:
    """Call the class or function that `target` names, in the current session. Raise MspcError if the file, the name or
    the arguments are wrong."""
    name, namespace = name_of(target.path), dict[str, Any]()
    try:
        with _restoring_process_state():
            namespace = run_script_as(name, target.path, ()).__dict__
    except _Stop:  # the file also launches a network; its definitions exist nevertheless
        namespace = sys.modules[name].__dict__ if name in sys.modules else {}
    if target.name not in namespace:
        raise MspcError(
            f"{target.path} defines no {target.name!r}", notes=_similar(target.name, namespace), code="E0119"
        )
    keywords = dict(target.keywords)
    try:
        inspect.signature(namespace[target.name]).bind(*target.args, **keywords)
    except TypeError as error:
        raise MspcError(f"cannot build {target.name}: {error}") from None
    try:
        return namespace[target.name](*target.args, **keywords)
    except _Stop:
        raise MspcError(f"{target.name} calls a network while it is built") from None
    except MspcError:
        raise
    except Exception as error:
        raise ScriptError(error) from None


def capture_network(
    make: Callable[[], tuple[Any, Sequence[TensorType]]], path: Path, session: state.Session,
    data: Callable[[Sequence[TensorType]], str | tuple[Any, ...]],
) -> CapturedCall:  # fmt: skip
    """Capture a network that no script launches, called with global inputs of the given types, in semi-automatic mode.

    make: returns the network and its input types, in the session. path: of the file that it comes from. data: returns
    how the inputs are sharded, as in `dataset_strategy`. Raise MspcError if `make` does.
    """
    _prepare(session, _Recorder())
    network, types = make()
    context = replace(_context_of(network), dataset_strategy=data(types))
    return CapturedCall(network, tuple(types), context, path, global_types=True)


def _context_of(network: Any) -> FrozenContext:
    """Return the settings made by a file's own lines; by default semi-automatic mode with global inputs."""
    context, asked = freeze(network), state.current().asked
    if context.parallel_mode not in SHARDED:
        context = replace(context, parallel_mode=ParallelMode.SEMI_AUTO_PARALLEL)
    said = {"dataset_strategy", "full_batch"} & {*asked, *getattr(network, "parallel_settings", ())}
    return context if said else replace(context, dataset_strategy="full_batch")


def _prepare(session: state.Session, recorder: _Recorder) -> None:
    alias.install()
    state.swap(session)
    call_handler.install(recorder)


@contextlib.contextmanager
def _restoring_process_state() -> Generator[None]:
    """Restore the working folder and the standard streams after the script: later output is the command's, and its
    paths are relative to the user's folder."""
    folder, streams = os.getcwd(), (sys.stdout, sys.stderr)
    try:
        yield
    finally:
        os.chdir(folder)
        sys.stdout, sys.stderr = streams


def _similar(name: str, namespace: dict[str, Any]) -> list[str]:
    from mspc.mindspore_api.nn.cell import Cell

    cells = [key for key, value in namespace.items() if isinstance(value, type) and issubclass(value, Cell)]
    own = [key for key in cells if namespace[key].__module__ == namespace.get("__name__")]
    return [f"it defines {', '.join(own)}"] if own else []


def _top_line(frame: FrameType | None) -> Location | None:
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


@lru_cache(maxsize=4)
def _statements(source: bytes) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(source).body)


def _later_launches(module: ModuleType, path: Path, source: bytes, line: Location) -> tuple[Location, ...]:
    """Return the calls of a network or a Model below `line` at the script's top level, as far as its text shows
    them."""
    from mspc.mindspore_api.nn.cell import Cell

    # A script that has a Model has loaded its module, which takes long.
    model = getattr(sys.modules.get("mspc.mindspore_api.train.model"), "Model", ())
    found: list[Location] = []
    for statement in _statements(source):
        if statement.lineno <= line.line or isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            function = node.func if isinstance(node, ast.Call) else None
            method = function.attr if isinstance(function, ast.Attribute) else ""
            owner = function.value if isinstance(function, ast.Attribute) else function
            value = vars(module).get(owner.id) if isinstance(owner, ast.Name) else None
            trains = isinstance(value, model) and method in ("train", "eval", "fit", "predict")
            if trains or (isinstance(value, Cell) and not method):
                assert function is not None
                text = linecache.getline(str(path), function.lineno).rstrip("\n")
                column = len(text.encode()[: function.col_offset].decode(errors="ignore")) + 1
                found.append(Location(str(path), function.lineno, column, 0, text))
    return tuple(found)

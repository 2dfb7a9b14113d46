"""Files of a compile: their contents, initial values of parameters, and the output folder, which is written
atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from mspc.compiler.driver import Compiled, DumpPoint
from mspc.compiler.frontend.trace import Traced
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.files.atomic_writing import TemporaryPath, new_folder, reason_of, remove_left_over, shown_path
from mspc.ir.files.parsing import Written, indented
from mspc.ir.files.refill import exchange, finish_refill, is_mount_point, is_own_name, refill
from mspc.ir.graph import Graph, element_layouts
from mspc.ir.initial_value import Description
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType, Type, dtype_of
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.common.parameter import Parameter
from mspc.plans.files.plan_file import PlanFile
from mspc.runtime.program import FORMAT, PROGRAM, WEIGHTS, Settings


@dataclass(frozen=True)
class FirstValue:
    """Initial value of a parameter or constant.

    description: how it is generated; None if only the script has it. make: returns the global array, which is not
    stored. part: returns slices of it, if they can be generated separately.
    """

    name: str
    type: TensorType
    description: Description | None
    make: Callable[[], Any]
    part: Callable[[tuple[slice, ...]], Any] | None = None


def first_values(traced: Traced, graph: Graph) -> list[FirstValue]:
    """Return the initial values of all parameters and constants of a graph, in order. traced: the network that the
    graph is compiled from. Raise MspcError if an initializer cannot make a tensor of this shape or element type."""
    return [
        _first_value(p.name, traced.constants[p.name] if p.name in traced.constants else traced.parameters[p.name])
        for p in graph.parameters
        if p.kind != "input"
    ]


def _first_value(name: str, source: Any) -> FirstValue:
    """Return the initial value of a Parameter of the script, an unsampled tensor, or an array."""
    initial = source.initial if isinstance(source, Parameter) else source
    if isinstance(initial, InitialValue):
        part = initial.fill if initial.in_parts else None
        try:
            described = initial.description()
        except MspcError as error:
            raise MspcError(f"parameter '{name}': {error.message}", notes=error.notes) from None
        return FirstValue(name, TensorType(initial.dtype, initial.shape), described, initial.fill, part)
    if isinstance(source, Parameter):
        return FirstValue(name, source.type, None, lambda: source.array)
    array = np.asarray(source)
    return FirstValue(name, TensorType(dtype_of(array.dtype), array.shape), None, lambda: array)


LAST = "execute"
MAIN_STAGES = ("frontend", "step_parallel_begin", "slice_to_rank", LAST)
NO_FILES = -1
"""Level at which no stage is stored."""

File = tuple[str, bytes]


class StageFiles:
    """Collector of the files of the stages that a level selects, used as `on_stage`. level: 0 for the last stage, 1 for
    the main ones, 2 and 3 for all. place: changes the parameters of the last stage, or None."""

    def __init__(self, level: int, place: Callable[[Graph], None] | None = None) -> None:
        self.level, self.place = level, place
        self.files: list[File] = []
        """Pairs (name without counter, content)."""

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """Names of the stages that are stored; None for all."""
        return {NO_FILES: (), 0: (LAST,), 1: MAIN_STAGES}.get(self.level)

    def __call__(self, stage: DumpPoint) -> None:
        if self.wanted is not None and stage.name not in self.wanted:
            return
        changed = "yes" if stage.changed else "no"
        header = f"# after: {stage.name}, previous: {stage.previous or 'none'}, changed: {changed}\n"
        if self.place is not None and stage.name == LAST:
            self.place(stage.graph)
        text = stage.text() if self.place is None or stage.name != LAST else print_graph(stage.graph)
        self.files.append((f"{stage.file}.ir", (header + text).encode()))


def numbered(rank: int, files: Iterable[File]) -> Iterable[File]:
    """Yield the files with the rank's folder and a counter in their names."""
    for counter, (name, content) in enumerate(files):
        yield f"rank_{rank}/{name.removesuffix('.ir')}_{counter:04}.ir", content


def is_execute(name: str) -> bool:
    return f"_{LAST}_" in name and name.endswith(".ir")


def program(
    compiled: Compiled, execute: dict[int, str], digests: dict[str, str], settings: Settings,
    values: Iterable[FirstValue], network: str, kinds: Mapping[int, int], provenance: Mapping[str, Mapping[str, str]],
) -> str:  # fmt: skip
    """Return the text of `program.json`.

    execute: file of every rank. digests: SHA-256 of these files. settings: of the script. values: initial values of
    parameters and constants; those without a description are in the weights. network: text of the traced graph; "" if
    one device cannot be compared with the ranks. kinds: a number per rank, equal for ranks with equal programs.
    provenance: of the nodes of the first file of each kind, in the form of `provenance_texts`.
    """
    graph = compiled.graph
    set_by_script = settings.entry()
    content = {
        "format": FORMAT,
        "compile_id": graph.attrs["compile_id"],
        "ranks": compiled.config.all_ranks,
        "mode": compiled.config.mode,
        "training": any(node.phase == "update" for node in graph.all_nodes()),
        **({"settings": set_by_script} if set_by_script else {}),
        "execute": {str(rank): name for rank, name in execute.items()},
        "digests": digests,
        "kinds": {str(rank): kind for rank, kind in kinds.items()},
        "provenance": provenance,
        "inputs": [
            {"name": p.name, **_typed(fed.global_type), "layout": str(fed.layout)}
            for p, fed in zip(compiled.inputs, compiled.fed, strict=True)
        ],
        "outputs": [
            {**_typed(v.type), "layout": "; ".join(map(str, element_layouts(v.layout)))} for v in graph.results
        ],
        "parameters": _parameters(graph, values),
        **_plan(compiled.strategies.plan(compiled.config.ranks)),
        **({"network": network} if network else {}),
    }
    return indented(content) + "\n"


def _parameters(graph: Graph, values: Iterable[FirstValue]) -> list[Written]:
    """Return the entries of all parameters and constants in `parameters`. Equal parts of the text are shared: of
    thousands of entries, nearly all differ only in name and random seed."""
    made = {value.name: value.description for value in values if value.description is not None}
    line = "\n" + " " * 3
    shared: dict[Any, str] = {}
    found: list[Written] = []
    for p in graph.parameters:
        if p.kind == "input":
            continue
        key = p.kind, id(p.global_type or p.type), id(p.layout)
        rest = shared.get(key)
        if rest is None:
            facts = {"kind": p.kind, **_typed(p.global_type or p.type), "layout": str(p.layout or "")}
            rest = shared[key] = indented(facts, line[:-1])[1 : -len(line)]
        initial = f',{line}"initial": {indented(made[p.name].entry(), line)}' if p.name in made else ""
        found.append(Written(f'{{{line}"name": {indented(p.name)},{rest}{initial}{line[:-1]}}}'))
    return found


def _plan(plan: PlanFile) -> dict[str, Any]:
    """Return the decisions of the compile in the form of a plan: operand layouts of every operator, and the rest."""
    if not plan.operators:
        return {}
    results = {name: [str(layout) for layout in layouts] for name, layouts in plan.results.items()}
    stored = {name: str(layout) for name, layout in plan.parameters.items()}
    return {
        "operators": {name: [str(layout) for layout in layouts] for name, layouts in plan.operators.items()},
        **({"results": results} if results else {}),
        **({"stored": stored} if stored else {}),
        **({"gather_again": list(plan.gather_again)} if plan.gather_again else {}),
        **({"recompute": list(plan.recompute)} if plan.recompute else {}),
        **({"offload": list(plan.on_host)} if plan.on_host else {}),
    }


def _typed(type: Type) -> dict[str, Any]:
    shape = getattr(type, "shape", None)
    if shape is None:
        return {"type": str(type)}
    return {"dtype": str(getattr(type, "dtype", "")), "shape": list(shape)}


CAPTURED = "rank_0.step"
"""File that identifies a folder of `mspc capture`."""
MODULE = "program.mlir"
"""The file of the programs of all ranks as StableHLO."""
GROUPS, PERFETTO = "comm_groups.json", "perfetto.json"
"""Files in a folder of traces, which the first identifies."""
_NAMED = "|".join(map(re.escape, (PROGRAM, WEIGHTS, MODULE, GROUPS, PERFETTO)))
OWN_FILE = re.compile(rf"rank_\d+(\.step)?|ranks\.json|trace\.\d+\.et|{_NAMED}")
OWN_IN_RANK = re.compile(r".*_\d{4,}\.(ir|dot)")
PLACE_TAKEN_ERRORS = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EXDEV)


class OutputFolder:
    """A new folder for files, which `commit` moves to `path`; without it `path` does not change.

    An earlier output of mspc is replaced at once, and an empty folder is filled. If the process is killed, either the
    earlier output or the new one is complete, and the next writer removes the remains. Raise MspcError if `path`
    contains files that mspc did not write, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: set[str] = set()
        self._parents: list[Path] = []
        self._beside: TemporaryPath | None = None
        self._committed = False
        self._on_termination: Any = None
        try:
            self._place = Path(os.path.realpath(path))
            finish_refill(self._place, PROGRAM)
            _check_replaceable(path)
        except (OSError, ValueError) as error:  # ValueError: characters not allowed in names
            raise _cannot_write(path, error) from None

    def __enter__(self) -> OutputFolder:
        try:
            for parent in reversed([p for p in self._place.parents if not p.exists()]):
                parent.mkdir(exist_ok=True)
                self._parents.insert(0, parent)
            remove_left_over(self._place.parent)
            remove_left_over(self._place)
            # A folder that cannot be replaced stays, and its contents are replaced.
            must_stay = self._place.is_dir() and (
                is_mount_point(self._place) or not os.access(self._place.parent, os.W_OK)
            )
            self._beside = new_folder(self._place if must_stay else self._place.parent, self._place.name)
        except OSError as error:
            self._remove_unused()
            raise _cannot_write(self.path, error) from None
        if threading.current_thread() is threading.main_thread():
            self._on_termination = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beside is not None
        shutil.rmtree(self._beside.path, ignore_errors=True)
        self._beside.release()
        self._remove_unused()
        if self._on_termination is not None:
            signal.signal(signal.SIGTERM, self._on_termination)
        if isinstance(error, OSError):
            raise _cannot_write(self.path, error) from None

    def _remove_unused(self) -> None:
        """Remove the parent folders made for an output that was not committed."""
        if not self._committed:
            with contextlib.suppress(OSError):
                for parent in self._parents:
                    parent.rmdir()

    @property
    def room(self) -> Path:
        """Folder that `commit` moves, for a process that writes its own files."""
        assert self._beside is not None
        return self._beside.path

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file; `name` is relative to the folder. An OSError is explained when the `with` block is left."""
        self.write_by(name, lambda file: file.write(content.encode() if isinstance(content, str) else content))

    def write_by(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write one file: `write` gets the open binary file and may write it in parts."""
        assert self._beside is not None
        target = self._beside.path / name
        folder = os.path.dirname(name)
        if folder and folder not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(target, "wb") as file:
            write(file)

    def commit(self) -> None:
        """Move the folder to `path`."""
        assert self._beside is not None
        _check_replaceable(self.path)
        new = self._beside.path
        if new.parent == self._place:
            refill(self._place, new, PROGRAM)
        else:
            try:
                os.rename(new, self._place)
            except OSError as error:
                if error.errno not in PLACE_TAKEN_ERRORS:
                    raise
                if not exchange(new, self._place):
                    inside = self._place / new.name
                    os.rename(new, inside)
                    refill(self._place, inside, PROGRAM)
        self._committed = True


def _exit(number: int, _: object) -> None:
    """Handle SIGTERM: exit, so that the unfinished folder is removed."""
    raise SystemExit(128 + number)


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise MspcError(f"cannot write to {path}: it is a file", notes=["give another folder"], code="E0111")
    foreign = sorted(_foreign(path))
    if foreign:
        raise MspcError(
            f"{path} holds files that mspc did not write: {listed(foreign, 3)}",
            notes=["give another folder, or an empty one"], code="E0108",
        )


def _foreign(path: Path) -> list[str]:
    entries = [entry for entry in path.iterdir() if not is_own_name(entry.name)]
    if entries and not any((path / name).is_file() for name in (PROGRAM, CAPTURED, GROUPS)):
        return [entry.name for entry in entries]
    found: list[str] = []
    for entry in entries:
        if OWN_FILE.fullmatch(entry.name):
            inside = list(entry.iterdir()) if entry.is_dir() else []
            own = [e for e in inside if OWN_IN_RANK.fullmatch(e.name)]
            found += [f"{entry.name}/{e.name}" for e in inside if e not in own]
        else:
            found.append(entry.name)
    return found


def _cannot_write(path: Path, error: Exception) -> MspcError:
    return MspcError(
        f"cannot write to {shown_path(path)}: {reason_of(error)}",
        notes=["give another folder"],
        code="E0111",
    )

"""Files of `mspc.capture`: the program of one rank with its groups of ranks and the placements of its tensors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mspc.checkpoint.files import Files
from mspc.checkpoint.stored_tensors import StoredSlice, TensorPieces, box_of_shape
from mspc.ir.diagnostics import Frames, Location, MspcError
from mspc.ir.files.parsing import LARGEST_SIZE, entry, list_in, object_in, parsed_json, text_in, whole_in
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import coordinates
from mspc.ir.types import DTYPES, DType, TensorType, dtype_of
from mspc.readers.pytorch.archive import MAX_DIMENSIONS, NOT_HERE, Archive, ProgramWeights
from mspc.readers.pytorch.captured_kinds import GROUPS, RANKS, CapturedKind, in_common_form, read_kinds, with_slices
from mspc.readers.pytorch.exported_program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
    TensorPlace,
    names_in,
)
from mspc.readers.pytorch.kinds.aten_table import kind_of
from mspc.readers.pytorch.reasons import tensors_of_views

CONTENT = "capture.json"
VERSION = 2
"""The version of `CONTENT` that is read."""
_DESCRIBED = re.compile(r"^mesh_|^(undefined|default_pg)$|\s+")
"""Parts of the description of a group that say nothing of its dimension of a mesh."""
_NOTHING = re.compile(r"profiler\.|prim\.device|aten\._assert")
"""Operators that compute nothing."""
_KINDS = ("parameter", "buffer", "constant", "user")
_BUFFER = "all_gather_output"
"""The argument of FSDP's copy into its buffer that is overwritten."""
_RECEIVE = "c10d.recv_.default"
PEER = {"c10d.send.default": "dst", _RECEIVE: "src"}
"""Kinds of messages, and the argument with the place of the other rank in the group."""
_TAGS = 4096
"""Messages of one tag from one rank to another that are told apart."""
_OF_RANKS = ("groups", "draws")
"""Parts of a file that every rank has for itself."""
_OUTSIDE = "outside_"
"""The beginning of the names of tensors that are no parameters, buffers or inputs."""
_TARGETS = ("loss", "gradient_to_parameter")


@dataclass(frozen=True)
class Placement:
    """The place of a tensor among ranks: its whole shape, the mesh (nested lists of ranks), None for a plain tensor,
    and PyTorch's placement for each axis of the mesh."""

    shape: tuple[int, ...]
    mesh: Any = None
    placements: tuple[str, ...] = ()


DrawState = tuple[int, int]
"""The seed of a generator, and the place in its numbers."""


@dataclass(frozen=True)
class CapturedStep:
    """A training step as one rank of `ranks` runs it.

    program: its groups are named by their dimension of a mesh, if known, and their ranks. groups: the ranks of each.
    about: the description that the script or a mesh gave each. placements: of parameters, buffers and inputs, as
    PyTorch has them, by name, and of gradients that are DTensors, by the parameter's name and `.grad`. draws: the lines
    of each operator that may draw random numbers. states: of the generators before these.
    """

    program: ExportedProgram
    rank: int
    ranks: int
    groups: Mapping[str, tuple[int, ...]]
    about: Mapping[str, str]
    placements: Mapping[str, Placement] = field(default_factory=dict[str, Placement])
    draws: tuple[Frames, ...] = ()
    states: tuple[DrawState, ...] = ()

    @property
    def has_loss(self) -> bool:
        """Whether the rank computes the loss: of the stages of a pipeline, the last one does."""
        return any(output.kind == "loss" for output in self.program.outputs)


def read_step(path: Path, change: Callable[[Any], Any] = lambda content: content) -> CapturedStep:
    """Return the step in a file. change: makes the content of the rank from that of the file.

    Raise MspcError if it is none, or damaged, or of another version.
    """
    archive = Archive(path)
    if CONTENT not in archive:
        raise MspcError(
            f"{archive.shown} is no captured step: it has no {CONTENT}",
            notes=["mspc.capture.step writes one"], code="E0701",
        )  # fmt: skip
    try:
        content = object_in(parsed_json(archive.text(CONTENT)), "it")
        version = whole_in(entry(content, "version", "it"), "its version", 0)
        if version != VERSION:
            raise MspcError(
                f"{archive.shown} is of version {version} of captures; mspc reads version {VERSION}",
                notes=["capture it again with this version of mspc"],
            )
        try:
            content = with_slices(content)
        except (AttributeError, LookupError, TypeError, ValueError):
            pass  # the reader says what is damaged
        return _StepReader(archive, change(content)).step()
    except ValueError as error:
        raise MspcError(f"{archive.shown} is damaged: {CONTENT}: {error}", code="E0116") from None


def read_rank(folder: Path, rank: int, kinds: Sequence[CapturedKind] | None = None) -> CapturedStep:
    """Return the step of a rank in a folder of `mspc capture`, whose kinds of ranks are read if they are not given.
    Raise MspcError if there is none, or it is of another rank."""
    own = folder / f"rank_{rank}.step"
    kind = next((each for each in (read_kinds(folder) if kinds is None else kinds) if rank in each.ranks), None)
    if kind is None or own.exists():
        step = read_step(own)
    else:
        step = read_step(
            folder / f"rank_{kind.traced}.step", lambda content: kind.program_of(rank, in_common_form(content))
        )
    if step.rank != rank:
        raise MspcError(f"{step.program.name} is of rank {step.rank}, not of rank {rank}")
    return step


Members = Mapping[str, tuple[tuple[int, ...], ...]]
"""The ranks of each group of a program, as each rank that runs it has them."""


def programs_of(folder: Path, kind: CapturedKind) -> list[tuple[tuple[int, ...], Members, list[tuple[DrawState, ...]]]]:
    """Divide the ranks of a kind by the program that they run, but for groups and seeds: offsets are part of it. Return
    (the ranks, the ranks of each group of the first one's program as each of them has them, the states of generators
    before draws on each) of each program."""
    path, count = folder / f"rank_{kind.traced}.step", math.prod(kind.mesh)
    found = dict[Any, tuple[list[int], list[Any], list[tuple[DrawState, ...]]]]()
    try:
        content = in_common_form(parsed_json(Archive(path).text(CONTENT)))
        own = replace(kind, slopes=tuple({p: n for p, n in each.items() if p[0] in _OF_RANKS} for each in kind.slopes))
        short = {"groups": content["groups"], "draws": content.get("draws", [])}
        offsets = [{p: n for p, n in each.items() if _is_offset(p, content)} for each in kind.slopes]
        for rank in kind.ranks:
            made = own.program_of(rank, short)
            place = coordinates(kind.mesh, rank)
            key = tuple(at for at, slopes in zip(place, offsets, strict=True) if slopes)
            ranks, groups, states = found.setdefault(key, ([], [], []))
            ranks.append(rank)
            groups.append([[whole_in(r, "a group", 0, count - 1) for r in g["ranks"]] for g in made["groups"].values()])
            states.append(_draws(made)[1])
        about = [group["about"] for group in content["groups"].values()]
    except (LookupError, TypeError, ValueError) as error:
        raise MspcError(f"{path} and {folder / RANKS} do not fit each other: {error}", code="E0116") from None
    return [
        (tuple(ranks), {_label(said, each[0]): tuple(map(tuple, each)) for said, each in
                        zip(about, zip(*groups, strict=True), strict=True)}, states)
        for ranks, groups, states in found.values()
    ]  # fmt: skip


def _is_offset(place: Any, content: Any) -> bool:
    """Return whether a number of a program is an argument that mspc reads."""
    if place[0] != "nodes":
        return False
    operator = kind_of(content["nodes"][place[1]][0])
    return operator is None or place[3] not in operator.unread


def _draws(content: Mapping[str, Any], nodes: int = LARGEST_SIZE) -> tuple[list[int], tuple[DrawState, ...]]:
    """Return the numbers of nodes that draw, and the states before. nodes: their number."""
    found = [_tuple(each, "a draw", 3) for each in list_in(content.get("draws", []), "its draws")]
    states = tuple((whole_in(seed, "a seed", 0, 1 << 64), whole_in(place, "a draw", 0)) for _, seed, place in found)
    return [whole_in(number, "a draw", 0, nodes - 1) for number, _, _ in found], states


def _label(about: str, ranks: Sequence[int]) -> str:
    """Return the name of a group, which all of its ranks have for it: its description and its ranks."""
    return f"{_DESCRIBED.sub('', about) or 'ranks'} {'-'.join(map(str, ranks))}"


class _StepReader:
    """Reads the content of one file. Its methods raise ValueError with the error and its place."""

    def __init__(self, archive: Archive, content: Mapping[str, Any]) -> None:
        self.archive, self.content = archive, dict(content)
        self.ranks = whole_in(self._entry("ranks"), "its ranks", 1)
        self.rank = whole_in(self._entry("rank"), "its rank", 0, self.ranks - 1)
        self.known: set[str] = set()
        self.used: set[str] = set()
        """Groups that nodes name."""
        self.dtypes: dict[str, DType] = {}
        self.constants = 0
        """Number of stored constants so far."""

    def _entry(self, name: str) -> Any:
        return entry(self.content, name, "it")

    def step(self) -> CapturedStep:
        groups, about = dict[str, tuple[int, ...]](), dict[str, str]()
        for name, value in object_in(self._entry("groups"), "its groups").items():
            owner, where = object_in(value, f"group {name!r:.40}"), f"group {name!r:.40}"
            groups[name] = tuple(whole_in(rank, where, 0, self.ranks - 1) for rank in self._list(owner, "ranks", where))
            about[name] = text_in(owner.get("about", ""), where)
        self.labels = {name: _label(about[name], members) for name, members in groups.items()}
        self.places = [
            self._place(each, f"place {at}") for at, each in enumerate(list_in(self._entry("places"), "its"))
        ]
        inputs, placements, tensors = list[ProgramInput](), dict[str, Placement](), dict[str, TensorPieces]()
        for at, value in enumerate(list_in(self._entry("inputs"), "its inputs")):
            owner, where = object_in(value, f"input {at}"), f"input {at}"
            inputs.append(self._input(owner, where))
            name = inputs[-1].qualified
            if name in placements:
                raise ValueError(f"it has {name!r:.80} twice")
            placements[name] = self._placement(owner, f"the placement of {name!r:.80}")
            if owner.get("value") is not None:
                tensors[name] = self._value(owner["value"], inputs[-1].type, name)
        nodes = [self._node(each, f"node {at}") for at, each in enumerate(list_in(self._entry("nodes"), "its nodes"))]
        numbers, states = _draws(self.content, len(nodes))
        draws = tuple(nodes[number].frames for number in numbers)
        nodes = [node for node in nodes if not _NOTHING.match(node.target)]
        nodes = _with_messages(nodes, {self.labels[name]: groups[name] for name in groups})
        outputs = [self._output(each, placements) for each in list_in(self._entry("outputs"), "its outputs")]
        graph = ExportedGraph(
            tuple(nodes), tuple((each.name, each.type) for each in inputs), tuple(each.value for each in outputs)
        )
        weights = ProgramWeights(self.archive.shown, Files([self.archive.path], [self.archive.size]), tensors)
        program = ExportedProgram(
            self.archive.shown, graph, tuple(inputs), tuple(outputs), weights,
            torch=text_in(self.content.get("torch", ""), "its torch"), is_step=True,
        )  # fmt: skip
        named = _named(program)
        placements |= {new.qualified: placements[old.qualified] for new, old in zip(named, inputs, strict=True)}
        program = replace(program, inputs=tuple(named))
        used = {self.labels[name]: name for name in groups if name in self.used}
        return CapturedStep(
            program, self.rank, self.ranks, {label: groups[name] for label, name in used.items()},
            {label: about[name] for label, name in used.items()}, placements, draws, states,
        )  # fmt: skip

    def _list(self, owner: Mapping[str, Any], name: str, where: str) -> list[Any]:
        return list_in(entry(dict(owner), name, where), where)

    def _input(self, owner: dict[str, Any], where: str) -> ProgramInput:
        kind = text_in(entry(owner, "kind", where), where)
        if kind not in _KINDS:
            raise ValueError(f"{where} is of kind {kind!r:.40}, which mspc does not know")
        name, type = self._defined(entry(owner, "tensor", where), where)
        qualified = text_in(entry(owner, "name", where), where)
        if kind == "user" and not qualified[:1].isalpha():
            qualified = f"input_{qualified}".rstrip("_")
        if kind == "constant" and type.shape and owner.get("value") is not None:
            qualified = f"{_OUTSIDE}constant_{self.constants}"  # ranks and one device have other numbers of inputs
            self.constants += 1
        return ProgramInput(kind, name, qualified, type, kind == "parameter", kind != "constant")

    def _placement(self, owner: Mapping[str, Any], where: str) -> Placement:
        shape = tuple(whole_in(n, where, 0) for n in self._list(owner, "shape", where))
        mesh = owner.get("mesh")
        if mesh is None:
            return Placement(shape)
        depth, level = 0, [mesh]
        while any(isinstance(each, list) for each in level):  # all of one depth and length, or it is no mesh
            if len({len(list_in(each, where)) for each in level}) > 1 or not level[0] or depth > MAX_DIMENSIONS:
                raise ValueError(f"{where} has a mesh that is no array")
            depth, level = depth + 1, [inner for each in level for inner in each]
        for rank in level:
            whole_in(rank, f"{where}: mesh", 0, self.ranks - 1)
        return Placement(shape, mesh, _axes_in(self._list(owner, "placements", where), depth, where))

    def _value(self, number: Any, type: ExportedType | None, name: str) -> TensorPieces:
        assert type is not None
        shape = tuple(n for n in type.shape if isinstance(n, int))
        stored = TensorType(type.dtype, shape)
        place = self.archive.place(f"value_{whole_in(number, name, 0)}")
        if place.size != stored.nbytes:
            raise ValueError(f"{name!r:.80} is of type {stored}, and {place.size} bytes of it are stored")
        return TensorPieces(stored, (StoredSlice(box_of_shape(shape), 0, ((place.offset, place.size),)),))

    def _place(self, value: Any, where: str) -> tuple[Frames, str, tuple[str, ...]]:
        """Return (the lines, the innermost first, the path of the module, the classes on it)."""
        frames, modules = _tuple(value, where, 2)
        lines: list[Location] = []
        for each in list_in(frames, where):
            file, line, text = _tuple(each, where, 3)
            lines.append(Location(text_in(file, where), whole_in(line, where, 0), text=text_in(text, where)))
        scopes = [_tuple(each, where, 2) for each in list_in(modules, where)]
        path = text_in(scopes[-1][0], where) if scopes else ""
        return tuple(lines), path, tuple(text_in(each[1], where) for each in scopes)

    def _node(self, value: Any, where: str) -> ExportedNode:
        operator, given, by_name, results, place = _tuple(value, where, 5)
        target = text_in(operator, where)
        where = f"{where} ({target:.80})"
        arguments = tuple(
            (name, self._group(each, where) if name in GROUPS else self._argument(each, where))
            for name, each in object_in(given, where).items()
        )
        made = [("", None) if each is None else self._defined(each, where) for each in list_in(results, where)]
        frames, scope, modules = self.places[whole_in(place, where, 0, len(self.places) - 1)]
        return ExportedNode(
            next((name for name, _ in made if name), ""), target, arguments, tuple(name for name, _ in made),
            tuple(type for _, type in made), frames, scope, modules, whole_in(by_name, where, 0),
        )  # fmt: skip

    def _group(self, value: Any, where: str) -> str:
        name = text_in(value, where)
        if name not in self.labels:
            raise ValueError(f"{where} names group {name!r:.40}, which the file does not list")
        self.used.add(name)
        return self.labels[name]

    def _argument(self, value: Any, where: str) -> Argument:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return tuple([self._argument(each, where) for each in value])
        owner = object_in(value, where)
        kind = next(iter(owner), "")
        text = text_in(owner.get(kind), where)
        if kind == "tensor":
            return self._known(text, where)
        if kind == "float" and text in ("inf", "-inf", "nan"):
            return float(text)
        if kind != "torch":
            raise ValueError(f"{where} has an argument of kind {kind!r:.40}, which mspc does not know")
        return self._dtype(text, where) if text.lower() in _TYPES else TensorPlace(text)

    def _known(self, name: str, where: str) -> NodeResult:
        if name not in self.known:
            raise ValueError(f"{where} is {name!r:.60}, which nothing before it gives")
        return NodeResult(name)

    def _defined(self, value: Any, where: str) -> tuple[str, ExportedType]:
        name, dtype, sizes = _tuple(value, where, 3)
        if text_in(name, where) in self.known:
            raise ValueError(f"{where} is called {name!r:.60}, as another value before it")
        self.known.add(name)
        shape = tuple(whole_in(size, f"{where}: sizes", 0) for size in list_in(sizes, where))
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"{where} has {len(shape)} dimensions")
        return name, ExportedType(self._dtype(text_in(dtype, where), where), shape)

    def _dtype(self, name: str, where: str) -> DType:
        if name not in self.dtypes:
            if name in NOT_HERE.values():
                raise ValueError(f"{where} is of {name}, which mspc does not have")
            if name.lower() not in _TYPES:
                raise ValueError(f"{where} has element type {name!r:.40}, which mspc does not know")
            self.dtypes[name] = dtype_of(name)
        return self.dtypes[name]

    def _output(self, value: Any, placements: dict[str, Placement]) -> ProgramOutput:
        """Read an output, and add the placement of a gradient to `placements`."""
        entries = list_in(value, "an output")
        kind, target, name = (text_in(each, "an output") for each in _tuple(entries[:3], "an output", 3))
        if kind not in _TARGETS:
            raise ValueError(f"an output is of kind {kind!r:.40}, which mspc does not know")
        own, whole = list_in(entries[3], f"output {target!r:.80}") if entries[3:] else [], placements.get(target)
        if own and whole is not None and whole.mesh is not None:
            texts = _axes_in(own, len(whole.placements), f"the gradient of {target!r:.80}")
            placements[f"{target}.grad"] = replace(whole, placements=texts)
        return ProgramOutput(kind, self._known(name, f"output {target!r:.80}"), target)


def _with_messages(nodes: Sequence[ExportedNode], groups: Mapping[Any, Sequence[int]]) -> list[ExportedNode]:
    """Return the nodes with each message under a tag of its own, and each receive right before the first node that
    reads its tensor: a rank that receives does not wait before. groups: their ranks."""
    if not any(node.target in PEER for node in nodes):
        return [*nodes]
    counts, tensors = Counter[Any](), tensors_of_views(nodes)
    found, waiting = list[ExportedNode](), dict[str, ExportedNode]()
    for node in nodes:
        names = dict.fromkeys(tensors.get(name, name) for _, value in node.arguments for name in names_in(value))
        found += [waiting.pop(name) for name in names if name in waiting]
        if node.target in PEER:
            given: dict[str, Any] = dict(node.arguments)
            message = (node.target, groups[given["process_group"]][given[PEER[node.target]]], given["tag"])
            given["tag"] = _TAGS * given["tag"] + counts[message]
            counts[message] += 1
            node = replace(node, arguments=tuple(given.items()))
        if node.target == _RECEIVE:
            waiting |= dict.fromkeys(names, node)
        else:
            found.append(node)
    return [*found, *waiting.values()]


def _axes_in(texts: Sequence[Any], depth: int, where: str) -> tuple[str, ...]:
    """Return the placements of a tensor on the axes of its mesh. Raise ValueError if they are not as many."""
    if len(texts) != depth:
        raise ValueError(f"{where} has {len(texts)} placements for a mesh of {depth} dimensions")
    return tuple(text_in(each, where) for each in texts)


def _named(program: ExportedProgram) -> list[ProgramInput]:
    """Return the inputs. Tensors that the script makes outside of the step are numbered in the order in which the step
    reads them; those that it writes first, as FSDP does with its buffers, are constants.

    Raise MspcError if a node reads a constant that has no stored values.
    """
    known = program.weights.tensors
    users = {each.name for each in program.inputs if each.kind == "user" and each.qualified.startswith(_OUTSIDE)}
    root = {
        each.name: each for each in program.inputs
        if each.name in users or (each.kind == "constant" and each.qualified not in known)
    }  # fmt: skip
    written, read = set[str](), dict[str, str]()
    for node in program.graph.nodes if root else ():
        kind = kind_of(node.target)
        for argument, value in node.arguments:
            for name in names_in(value):
                own = root.get(name)
                if kind is None or own is None or own.name in written or own.name in read:
                    continue
                if argument in kind.writes or argument == _BUFFER:
                    written.add(own.name)
                elif kind.put is not None:
                    root.update((result, own) for result in node.results)
                elif own.name in users:
                    read[own.name] = f"{_OUTSIDE}input_{len(read)}"
                else:
                    raise MspcError(
                        f"{node.target} reads a tensor of shape {own.type.shape if own.type else ()} that was made "
                        "before the step and is no parameter, buffer or input", node.user_line,
                        [f"in {program.name}", "make it a buffer of the model, or one of the inputs of the step"],
                    )  # fmt: skip
    return [
        replace(each, qualified=read[each.name]) if each.name in read
        else replace(each, kind="constant", persistent=False) if each.name in users else each
        for each in program.inputs
    ]  # fmt: skip


_TYPES = frozenset({name.lower() for name in DTYPES} | set(NOT_HERE.values()))


def _tuple(value: Any, where: str, count: int) -> Sequence[Any]:
    found = list_in(value, where)
    if len(found) != count:
        raise ValueError(f"{where} has {len(found)} entries, not {count}")
    return found

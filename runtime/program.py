"""A program is a compiled directory as one rank reads it: only its own `execute` file and its slices of the weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError, listed, ranks_listed
from mspc.ir.files.parsing import entry, flag_in, list_in, object_in, parsed_json, reading, text_in, texts_in, whole_in
from mspc.ir.files.refill import finish_refill
from mspc.ir.files.regular import check_name, inside, read_begin, read_bytes, read_text
from mspc.ir.files.tensors import TensorFile
from mspc.ir.graph import STAGES, Graph, Parameter
from mspc.ir.initial_value import read_description
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.limits import MAX_RANKS
from mspc.ir.text.source_text import Malformed
from mspc.ir.types import dtype_of
from mspc.runtime.data import full_type, padded_slice, slice_parameter, slices_of, typed_as

FORMAT = 1
PROGRAM = "program.json"
WEIGHTS = "weights.safetensors"
_SWITCH = {"ON": True, "OFF": False}
_DEFAULTS = {"matmul_allow_tf32": False, "deterministic": "OFF", "device_target": "CPU"}


@dataclass(frozen=True)
class Settings:
    """Settings of the script for GPUs, with the names and values of `set_context`.

    matmul_allow_tf32: matmuls of Float32 may round their operands to TF32. deterministic: the same bits in every run.
    device_target: device for which the programs were compiled.
    """

    matmul_allow_tf32: bool = False
    deterministic: bool = False
    device_target: str = "CPU"

    def entry(self) -> dict[str, Any]:
        """Return the entry `settings` of `program.json`: the values that differ from the defaults."""
        found = {
            "matmul_allow_tf32": self.matmul_allow_tf32,
            "deterministic": "ON" if self.deterministic else "OFF",
            "device_target": self.device_target,
        }
        return {key: value for key, value in found.items() if value != _DEFAULTS[key]}

    @staticmethod
    def read(entry: Any) -> Settings:
        """Return the settings of such an entry. Raise ValueError for an unknown name or value."""
        for key in object_in(entry, "settings"):
            if key not in _DEFAULTS:
                raise ValueError(f"settings has no {key!r}; known are {listed([*_DEFAULTS])}")
        tf32, deterministic, device = ({**_DEFAULTS, **entry}[key] for key in _DEFAULTS)
        flag_in(tf32, "matmul_allow_tf32 in settings")
        if not isinstance(deterministic, str) or deterministic not in _SWITCH:
            raise ValueError(f'deterministic in settings is {json.dumps(deterministic)}, not "ON" or "OFF"')
        if device not in ("CPU", "GPU"):
            raise ValueError(f'device_target in settings is {json.dumps(device)}, not "CPU" or "GPU"')
        return Settings(tf32, _SWITCH[deterministic], device)


@dataclass(frozen=True)
class PlanEntries:
    """Decisions of a compile.

    operators: layouts of operands, by the operator's name in plans. results: layouts of results that do not follow from
    the operands. parameters: layouts of parameters that are stored in another layout than operators read. gather_again:
    parameters among these that are gathered again for gradients. recompute: recomputed cells. offload: entries stored
    on the host.
    """

    operators: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    gather_again: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    results: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    offload: tuple[str, ...] = ()

    @staticmethod
    def read(content: Mapping[str, Any]) -> PlanEntries | None:
        """Return the decisions of the compile, or None. Raise ValueError if entries are invalid."""
        if "operators" not in content:
            return None

        def layouts(key: str) -> dict[str, tuple[str, ...]]:
            found = object_in(content.get(key, {}), key)
            return {name: tuple(map(str, list_in(each, f"{key}: {name}"))) for name, each in found.items()}

        stored = object_in(content.get("stored", {}), "stored")
        again, recompute, offload = (
            texts_in(content.get(key, []), key) for key in ("gather_again", "recompute", "offload")
        )
        return PlanEntries(
            layouts("operators"), {name: text_in(each, f"stored: {name}") for name, each in stored.items()}, again,
            recompute, layouts("results"), offload,
        )  # fmt: skip


@dataclass
class Program:
    """Contents of `program.json`.

    ranks, mode, compile_id: of the compile. training: a step updates parameters. execute: file of each rank, relative
    to `folder`. digests: SHA-256 of these files when they were written. settings: of the script; defaults if the file
    has none. network: text of the graph traced from the script, "" if the ranks share none. kinds: ranks with the same
    number have equal programs except for ranks, groups and offsets. plan: decisions of the compile; None if the file
    does not contain them. provenance: by file, in the form of `ir.provenance.provenance_texts`.
    """

    folder: Path
    compile_id: str
    ranks: int
    mode: str
    training: bool
    execute: Mapping[int, str]
    digests: Mapping[str, str]
    inputs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    outputs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    parameters: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    settings: Settings = Settings()
    network: str = ""
    kinds: Mapping[int, int] = field(default_factory=dict[int, int])
    plan: PlanEntries | None = None
    provenance: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, "dict[str, object]"])

    def text(self, rank: int) -> str:
        """Return the text of a rank's graph. Raise MspcError if the rank was not compiled, or its file is missing or
        not text."""
        return self._read(rank, read_text)

    def header(self, rank: int) -> str:
        """Return the header of a rank's graph, including its attributes. Raise MspcError like `text`."""
        return self._read(rank, read_begin)

    def _read(self, rank: int, read: Callable[[Path], str]) -> str:
        if rank not in self.execute:
            held = f"it holds {ranks_listed(sorted(self.execute)) if self.execute else 'none'}"
            raise MspcError(
                f"{self.folder} holds no graph for rank {rank}",
                notes=[held, f"compile it without --rank, or with --rank {rank}"],
            )
        path = inside(self.folder, self.execute[rank], str(self.folder / PROGRAM))
        with reading(path, f"graph of rank {rank}, which {PROGRAM} names", "is damaged", damaged="E0116"):
            return read(path)

    def edited(self, rank: int, text: str) -> bool:
        """Return whether the rank's file has changed since it was compiled."""
        wanted = self.digests.get(self.execute[rank])
        return wanted is not None and hashlib.sha256(text.encode()).hexdigest() != wanted

    def graph(self, rank: int, text: str, frames: bool = False) -> Graph:
        """Return the graph in `text`, checked against this program. Raise MspcError if the text is not a graph of this
        rank of this program."""
        from mspc.ir.text.parser import parse  # only a rank that runs needs this and the operators
        from mspc.ops.op import REGISTRY

        path = self.execute[rank]
        module = parse(text, REGISTRY, str(self.folder / path), frames=frames)
        graph = module.main
        surplus = len(module.graphs) - len(graph.graphs())
        if surplus:
            told = f"of the {len(module.graphs)} graphs of this file @{graph.name} runs all but {surplus}"
            raise MspcError(f"{self.folder / path}: {told}; a rank runs one, and those that its nodes name as regions")
        attrs = {**module.attrs, **graph.attrs}
        for key, wanted in (("ranks", self.ranks), ("rank", rank)):
            if attrs.get(key, wanted) != wanted:
                raise MspcError(f"{self.folder / path} says {key} {attrs[key]}; {PROGRAM} has {wanted} for it")
        graph.attrs = attrs
        return graph

    def damaged(self, what: str) -> MspcError:
        """Return the error for wrong content of the file."""
        return MspcError(f"{self.folder / PROGRAM} is damaged: {what}", code="E0116")

    def stages(self, graph: Graph) -> int:
        """Return the number of stages of a graph. Raise MspcError if it does not divide the number of ranks."""
        stages = graph.attrs.get(STAGES, 1)
        if type(stages) is not int or stages < 1 or self.ranks % stages:
            raise self.damaged(f"{self.ranks} ranks in {stages} stages")
        return stages

    def layout(self, entry: Mapping[str, Any], what: str, shape: tuple[int, ...], stages: int) -> Layout | None:
        """Return the layout of an input, output or parameter over the ranks of a stage, None if its entry has none.
        Raise MspcError if the layout cannot be read, or a value of this shape cannot have it."""
        text, ranks = str(entry.get("layout", "")), self.ranks // stages
        try:
            found = read_layouts(text)[0] if text else None
        except Malformed as error:
            raise self.damaged(f"layout {text!r}: {error}") from None
        if found is not None and (found.ranks != ranks or len(found.dims) != len(shape)):
            raise self.damaged(f"{what} of shape {shape} on {self.ranks} ranks cannot have the layout {found}")
        return found

    def missing(self) -> list[int]:
        """Return the ranks that have no graph here."""
        return [rank for rank in range(self.ranks) if rank not in self.execute]


def load_program(folder: Path) -> Program:
    """Read `program.json`. Raise MspcError if there is no program, it is damaged, or another version of mspc wrote
    it."""
    path = folder / PROGRAM
    if not os.path.exists(path):
        with contextlib.suppress(OSError):  # the folder may be read-only
            finish_refill(folder, PROGRAM)
    inside(folder, PROGRAM, "the folder")
    with reading(path, "program", "is damaged", damaged="E0116"):
        try:
            content = parsed_json(read_bytes(path))
        except FileNotFoundError:
            notes = ["mspc compile makes one"]
            raise MspcError(
                f"{folder} holds no compiled program: {PROGRAM} is missing", notes=notes, code="E0110"
            ) from None
    if not isinstance(content, dict):
        raise MspcError(f"{path} is damaged: it holds no object", code="E0116")
    if content.get("format") != FORMAT:
        raise MspcError(f"{path} has format {content.get('format')!r}; this mspc reads format {FORMAT}")
    try:
        return Program(
            folder=folder,
            compile_id=text_in(entry(content, "compile_id"), "compile_id"),
            ranks=whole_in(entry(content, "ranks"), "ranks", 1, MAX_RANKS),
            mode=text_in(entry(content, "mode"), "mode"),
            training=flag_in(entry(content, "training"), "training"),
            execute=_execute(path, object_in(entry(content, "execute"), "execute")),
            digests={f: str(digest) for f, digest in object_in(entry(content, "digests"), "digests").items()},
            inputs=_objects(content, "inputs"),
            outputs=_objects(content, "outputs"),
            parameters=_objects(content, "parameters"),
            settings=Settings.read(content.get("settings", {})),
            network=text_in(content.get("network", ""), "network"),
            kinds={int(rank): int(kind) for rank, kind in object_in(content.get("kinds", {}), "kinds").items()},
            plan=PlanEntries.read(content),
            provenance={f: object_in(t, f) for f, t in object_in(content.get("provenance", {}), "provenance").items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise MspcError(f"{path} is damaged: {error}", code="E0116") from None


def _execute(path: Path, files: dict[str, Any]) -> dict[int, str]:
    """Return the file of every rank."""
    found = {int(rank): str(file) for rank, file in files.items()}
    for name in found.values():
        check_name(name, str(path))
    return found


def load_slices(program: Program, graph: Graph, rank: int) -> dict[str, Any]:
    """Return this rank's slices of the parameters and constants, by the layouts in its file. A slice is read if the
    weights contain it, else generated from its description in the program. Raise MspcError if the weights or the
    descriptions are missing or damaged, or do not fit the graph."""
    return {name: load() for name, load in slices_to_load(program, graph, rank).items()}


def slices_to_load(program: Program, graph: Graph, rank: int) -> dict[str, Callable[[], Any]]:
    """Return a loader for each slice of `load_slices`, for callers that need only some. Raise MspcError like
    `load_slices`: immediately if something is missing, when loading if it is damaged."""
    stored = [parameter for parameter in graph.parameters if parameter.kind != "input"]
    described = {str(entry.get("name")): entry for entry in program.parameters if "initial" in entry}
    path = program.folder / WEIGHTS
    needed = [parameter for parameter in stored if parameter.name not in described]
    is_there = os.path.exists(path)
    if needed and not is_there:
        raise MspcError(f"{path} is missing; it holds the values of {len(needed)} parameters")
    file = opened_weights(inside(program.folder, WEIGHTS, "the folder")) if stored and is_there else None
    names = set(file.names) if file is not None else set[str]()
    found: dict[str, Callable[[], Any]] = {}
    for parameter in stored:
        if file is not None and parameter.name in names:
            found[parameter.name] = partial(_slice_of, file, parameter, rank, path)
        elif parameter.name in described:
            found[parameter.name] = partial(_make_slice, program, described[parameter.name], parameter, rank)
        else:
            raise MspcError(
                f"{path} holds no {parameter.kind} {parameter.name!r}",
                notes=[f"nor does {PROGRAM} say how its values are made"],
            )
    return found


def opened_weights(path: Path) -> TensorFile:
    """Open the file of weights. Raise MspcError if it is damaged or unreadable."""
    with reading(path, "file of weights", "is damaged", damaged="E0116"):
        return TensorFile(path)


def _slice_of(file: TensorFile, parameter: Parameter, rank: int, path: Path) -> Any:
    """Return a parameter's slice, reading only that part of the file."""
    where = slices_of(parameter, rank)
    with reading(path, "file of weights", "is damaged", damaged="E0116"):
        if where is None or file.type(parameter.name).shape != full_type(parameter).shape:
            return slice_parameter(parameter, file.read(parameter.name), rank, f"{path}:")
        return padded_slice(parameter, typed_as(parameter, file.read(parameter.name, where), f"{path}:"))


def _make_slice(program: Program, described: dict[str, Any], parameter: Parameter, rank: int) -> Any:
    """Return a parameter's slice, generated from its entry in `program.json`."""
    place = f"{program.folder / PROGRAM}: parameter {parameter.name!r}"
    try:
        shape = tuple(whole_in(size, "shape") for size in list_in(described.get("shape"), "shape"))
        initial = read_description(described["initial"], shape, dtype_of(text_in(described.get("dtype"), "dtype")))
    except MspcError as error:
        raise MspcError(f"{place}: {error.message}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise MspcError(f"{place}: how its initial value is made is damaged: {error}", code="E0116") from None
    if shape != full_type(parameter).shape:
        raise MspcError(f"{place} has shape {shape}; the program takes {full_type(parameter).shape}", code="E0802")
    made = typed_as(parameter, initial.fill(slices_of(parameter, rank)), f"{program.folder / PROGRAM}:")
    return padded_slice(parameter, made)


def _objects(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [object_in(each, key) for each in list_in(entry(content, key), key)]

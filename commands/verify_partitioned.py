"""A step of JAX beside the module that XLA's partitioner made of it, for `mspc verify --scale step.mlir --against`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mspc.commands.stablehlo import read_target
from mspc.commands.verify_capture import plain_program
from mspc.commands.verify_folder import ToProve
from mspc.engine.capture import NamedTarget
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Value
from mspc.ir.layout import Layout
from mspc.mindspore_api.state import Session
from mspc.readers.stablehlo.module import HloModule
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.shardings import layout_of, sharding_in
from mspc.verify.scale.rank_kinds import RankKind, merged

MAX_LAYOUTS = 24
"""Layouts of one result that are tried if neither text says which one it has."""


def programs_of_partitioned(target: NamedTarget | Path, after: Path) -> ToProve:
    """Return the programs of all devices and of one. All arguments are given, and all results compared. Raise MspcError
    if a file cannot be read, the module is of one device, or it is not of this step."""
    step, module = (with_innermost_lines(read_target(each)) for each in (target, after))
    if module.devices == 1 and step.partitions:  # a serialized module does not say how many there are
        module = replace(module, attributes={**module.attributes, "mhlo.num_partitions": step.partitions})
    count = module.devices
    if count < 2:
        raise MspcError(f"{after} is a module for one device, and a partitioned one is compared with its step")
    if step.partitions not in (0, count):
        raise MspcError(f"{after} is for {count} devices, and {step.file} for {step.partitions}", code="E0112")
    whole = StableHloNetwork(step, 1, is_function=True)
    one, values = plain_program(lambda: (whole, whole.input_types), Path(step.file), _session(0, 1))
    graphs = [_program(module, rank, count, whole) for rank in range(count)]
    names = result_names(whole)
    if any(len(graph.results) != len(names) for graph in graphs):
        found = len(graphs[0].results)
        raise MspcError(f"{after} has {found} results, and {step.file} has {len(names)}: it is of another step")
    layouts = argument_layouts(whole, module, count)
    for graph in graphs:
        for parameter in graph.parameters:
            parameter.layout = layouts[parameter.name]
    shapes = [value.tensor_type.shape for value in one.results]
    told = [_told(whole, module, at, layouts) for at in range(len(names))]
    asked = [list(_fitting(shape, value.tensor_type.shape, own, count, layouts.values(), names[at], after))
             for at, (shape, value, own) in enumerate(zip(shapes, graphs[0].results, told, strict=True))]  # fmt: skip
    notes: list[str] = []
    if any(len(each) > 1 for each in asked):
        notes.append("layouts of some results are in neither text: they are taken as they fit")
    kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
    made = ToProve(one, kinds, values, notes=tuple(notes), results=names, placed=asked)
    made.place({at: each[0] for at, each in enumerate(asked)})
    return made


def with_innermost_lines(module: HloModule) -> HloModule:
    """Return a module with one line for each operation: XLA keeps no others, and operations of the two texts that are
    on one line are held to each other."""
    for function in module.functions.values():
        for operation in function.body.all_operations():
            origin = operation.origin
            if origin is not None and len(origin.frames) > 1:
                operation.origin = replace(origin, frames=origin.frames[:1])
    return module


def _session(rank: int, count: int) -> Session:
    return Session(rank, count, rank, count, launched=True, initialized=True)


def _program(module: HloModule, rank: int, count: int, whole: StableHloNetwork) -> Graph:
    """Return the program of one device, with its own constants."""
    network = StableHloNetwork(replace(module, rank=rank), 1, like=whole, is_function=True)
    graph, values = plain_program(lambda: (network, network.input_types), Path(module.file), _session(rank, count))
    graph.attrs["ranks"] = count
    held = {value.name: value for value in values}
    own: dict[Value, Value] = {
        each: Constant(np.asarray(held[each.name].make()), each.tensor_type.dtype)
        for each in graph.parameters if each.kind == "constant"
    }  # fmt: skip
    graph.replace(own)
    graph.parameters = [each for each in graph.parameters if each not in own]
    return graph


def result_names(whole: StableHloNetwork) -> list[tuple[str, str]]:
    """Return (kind, name) of every result of a step."""
    main = whole.module.main
    targets = {each.target: each.name for each in whole.arguments if each.target >= 0}
    found: list[tuple[str, str]] = []
    for at in range(len(main.result_types)):
        attributes = main.result_attributes[at] if at < len(main.result_attributes) else {}
        name = targets.get(at)
        info = str(attributes.get("jax.result_info") or f"result {at}")
        found.append(("result", info) if name is None else ("parameter", name))
    return found


def argument_layouts(whole: StableHloNetwork, module: HloModule, count: int) -> dict[str, Layout]:
    """Return the layouts of arguments, as the partitioned module or else the step says; whole on every device without
    one. Raise MspcError if one does not fit the sizes of the arguments."""
    found: dict[str, Layout] = {}
    main = module.main
    for at, each in enumerate(whole.arguments):
        sharding = sharding_in(module, main.argument_attributes[at])
        named = layout_of(module, sharding, each.type.rank) if sharding is not None else None
        if sharding is None and each.sharding is not None:
            named = layout_of(whole.module, each.sharding, each.type.rank)
        layout = Layout.replicated(count, each.type.rank) if named is None else named.to_layout()
        local: Any = main.body.types[at]
        if layout.ranks != count or layout.local_shape(each.type.shape) != local.shape:
            raise MspcError(
                f"{module.file}: argument {each.name} is {local}, no slice of {each.type} in {whole.module.file}",
                module.location(main.place), [f"its sharding is {sharding}"],
            )  # fmt: skip
        found[each.name] = layout
    return found


def _told(whole: StableHloNetwork, module: HloModule, at: int, layouts: dict[str, Layout]) -> list[Layout]:
    """Return the layout of a result as one of the texts says, else that of the argument whose place it takes."""
    for text in (module, whole.module):
        attributes = text.main.result_attributes
        sharding = sharding_in(text, attributes[at]) if at < len(attributes) else None
        if sharding is not None:
            type: Any = whole.module.main.result_types[at]
            named = layout_of(text, sharding, type.rank)
            if named is not None:
                return [named.to_layout()]
    return [layouts[each.name] for each in whole.arguments if each.target == at]


def _fitting(
    shape: tuple[int, ...], local: tuple[int, ...], told: Sequence[Layout], count: int, known: Any,
    name: tuple[str, str], after: Path,
) -> Iterator[Layout]:  # fmt: skip
    """Yield layouts of a result with these sizes, the likeliest first."""
    if len(shape) != len(local) or any(n == 0 or m % n for m, n in zip(shape, local, strict=True)):
        raise MspcError(f"{after}: {' '.join(name)} has sizes {local}, no slice of {shape}: it is of another step")
    seen: list[Layout] = []
    meshes = {layout.mesh for layout in known}
    for layout in itertools.chain(told, known, _on_axes(shape, local, meshes, count)):
        fits = len(layout.dims) == len(shape) and layout.local_shape(shape) == local
        if fits and layout not in seen:
            seen.append(layout)
            yield layout
        if len(seen) >= MAX_LAYOUTS:
            return
    if not seen:
        raise MspcError(f"{after}: {' '.join(name)} has sizes {local}, which no axes give of {shape}")


def _on_axes(
    shape: tuple[int, ...], local: tuple[int, ...], meshes: set[tuple[int, ...]], count: int
) -> Iterator[Layout]:  # fmt: skip
    """Yield layouts that divide each dimension by some axes of a mesh in which the devices lie."""
    parts = [m // n for m, n in zip(shape, local, strict=True)]
    finest = sorted(meshes | {(count,)}, key=len, reverse=True)
    for mesh in finest:
        axes = range(len(mesh))
        choices = [
            [own for n in range(len(mesh) + 1) for own in itertools.permutations(axes, n)
             if math.prod(mesh[a] for a in own) == part and all(mesh[a] > 1 for a in own)]
            for part in parts
        ]  # fmt: skip
        for dims in itertools.product(*choices):
            used = [axis for own in dims for axis in own]
            if len(set(used)) == len(used):
                yield Layout.of(mesh, dims)


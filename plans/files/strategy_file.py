"""MindSpore's strategy files: shardings of operators and parameters, with checksums, merged from several stages."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import make_folder, shown_path, write_atomically
from mspc.ir.files.parsing import object_in, parsed_json, reading
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import (
    BYTES,
    FOUR,
    VARINT,
    WireField,
    fields,
    integers,
    put_bytes,
    put_integer,
    put_text,
    put_varint,
    signed,
    text,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout

FIELD = 4095
"""The number of the checksum's field, far from all numbers in MindSpore's files."""
ENTRY = "mspc_crc32"
"""The name of the checksum's entry in JSON."""
EDITED = f"it is damaged; if it was edited by hand, take the entry {ENTRY!r} out"
_HEAD = put_varint(FIELD << 3 | FOUR)


def with_checksum(message: bytes) -> bytes:
    """Return a message with its checksum in front."""
    return _HEAD + struct.pack("<I", zlib.crc32(message)) + message


def without_checksum(data: bytes) -> bytes:
    """Return the message after its checksum, or all of the data if it has none. Raise ValueError if the bytes differ
    from those that were written."""
    first = next(fields(data, 0, len(data)), None)
    if first is None or (first.number, first.kind) != (FIELD, FOUR):
        return data
    message = data[first.end :]
    if struct.unpack("<I", data[first.begin : first.end])[0] != zlib.crc32(message):
        raise ValueError("it is damaged: its bytes are not those that were written")
    return message


def json_without_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its checksum, if it has one. Raise ValueError if it was changed after writing."""
    if ENTRY not in content:
        return content
    rest = {key: value for key, value in content.items() if key != ENTRY}
    if content[ENTRY] != _of(rest):
        raise ValueError(EDITED)
    return rest


def _of(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


LARGEST = 1 << 28
"""Most bytes of a file."""
MAX_RANKS = 1 << 20

Cuts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ParameterCut:
    """Sharding of a parameter.

    device_matrix: sizes of the mesh axes. tensor_map: for every dimension the mesh axes that shard it, counted from the
    last axis, the most significant first; () for none. optimizer_step, optimizer_size: the further sharding of
    dimension 0: the distance of its ranks, and their number (-1 for all replicas, 0 for none). split_shape,
    offsets, field_size: shardings into unequal slices, which mspc does not make."""

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    optimizer_step: int = 0
    optimizer_size: int = 0
    split_shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    field_size: int = 0


@dataclass(frozen=True)
class StrategyFile:
    """Contents of a strategy file. stages: the pipeline stages of operators that are not in `stage`."""

    operators: Mapping[str, Cuts] = field(default_factory=dict[str, Cuts])
    parameters: Mapping[str, ParameterCut] = field(default_factory=dict[str, ParameterCut])
    stage: int = 0
    stages: Mapping[str, int] = field(default_factory=dict[str, int])


def write_strategies(path: Path, strategies: StrategyFile) -> None:
    """Write a file, as JSON if its suffix says so. Raise MspcError if it cannot be written."""
    is_json = path.suffix == ".json"
    content = _as_json(strategies).encode() if is_json else with_checksum(_as_message(strategies))
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write(content))


def read_strategies(path: Path) -> StrategyFile:
    """Read a file. Raise MspcError if the file does not exist, cannot be read, or is no strategy file."""
    shown, kinds = shown_path(path), "a strategy file is MindSpore's (.ckpt) or its JSON (.json)"
    notes = [] if path.suffix in (".json", ".ckpt") else [kinds]
    with reading(path, "strategy file", code="", kind=ValueError, notes=notes):
        check_regular(path, LARGEST)
        data = path.read_bytes()
        if not data:
            raise ValueError("it is empty")
        found = _from_json(data) if path.suffix == ".json" else _from_message(without_checksum(data))
    for name, sharding in found.parameters.items():
        _check(shown, name, sharding)
    return found


def read_restore_ranks(path: Path) -> list[int]:
    """Return the ranks in a file of groups (`ParallelGroupMap`) that hold the same slices as the rank that wrote it.
    Raise MspcError if the file cannot be read or is no such file."""
    with reading(path, "file of groups", kind=ValueError):
        check_regular(path, LARGEST)
        data = without_checksum(path.read_bytes())
        for outer in fields(data, 0, len(data)):
            if outer.number == 2 and outer.kind == BYTES:
                return [n for inner in fields(data, outer.begin, outer.end) for n in integers(data, inner)]
        raise ValueError("it names no ranks")


def write_groups(path: Path, groups: Mapping[str, Iterable[int]], alike: Iterable[int]) -> None:
    """Write a file of groups: the groups of a rank by name, and the ranks that hold the same slices. Raise MspcError if
    it cannot be written."""
    items = [put_bytes(1, put_text(1, name) + put_bytes(2, _row(ranks))) for name, ranks in sorted(groups.items())]
    content = b"".join(items) + put_bytes(2, _row(alike))
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write(with_checksum(content)))


def _check(shown: str, name: str, sharding: ParameterCut) -> None:
    """Raise MspcError if a sharding is not valid."""
    ranks = 1
    for size in sharding.device_matrix:
        ranks = min(ranks * size, MAX_RANKS + 1)  # a file may hold a million sizes
    used = [axis for axes in sharding.tensor_map for axis in axes]
    fits = all(size > 0 for size in sharding.device_matrix) and 0 < ranks <= MAX_RANKS
    if not fits or any(not 0 <= axis < len(sharding.device_matrix) for axis in used) or len(set(used)) < len(used):
        raise MspcError(
            f"{shown} is no strategy file: parameter {name!r} is sharded {list(sharding.tensor_map)} on a device "
            f"matrix {list(sharding.device_matrix)}", kind=ValueError,
        )  # fmt: skip


# As a message -------------------------------------------------------------------------------------


def _as_message(strategies: StrategyFile) -> bytes:
    found = [put_integer(1, strategies.stage)]
    for name, strategy in sorted(strategies.operators.items()):
        rows = b"".join(put_bytes(2, _row(shards)) for shards in strategy)
        item = put_text(1, name) + put_bytes(2, put_integer(1, strategies.stages.get(name, strategies.stage)) + rows)
        found.append(put_bytes(2, item))
    for name, sharding in sorted(strategies.parameters.items()):
        found.append(put_bytes(3, put_text(1, name) + put_bytes(2, _layouts(sharding))))
    return b"".join(found)


def _layouts(sharding: ParameterCut) -> bytes:
    parts = [put_bytes(1, _row(sharding.device_matrix))]
    parts += [put_bytes(2, _row(row)) for row in _map_rows(sharding)]
    parts += [put_bytes(3, _row(sharding.split_shape)), put_bytes(4, _row(sharding.offsets))]
    sizes = (sharding.field_size, sharding.optimizer_step, sharding.optimizer_size)
    return b"".join(parts) + b"".join(put_integer(5 + i, n) for i, n in enumerate(sizes))


def _map_rows(sharding: ParameterCut, in_json: bool = False) -> list[Any]:
    """Return one row of axes if at most one axis shards each dimension, in JSON the row itself, else a row for every
    dimension."""
    if all(len(axes) < 2 for axes in sharding.tensor_map):
        row = [axes[0] if axes else -1 for axes in sharding.tensor_map]
        return row if in_json else [row]
    rows = [list(axes) or [-1] for axes in sharding.tensor_map]
    return rows if in_json or len(rows) > 1 else [*rows, []]


def _row(numbers: Any) -> bytes:
    return b"".join(put_integer(1, n) for n in numbers)


def _from_message(data: bytes) -> StrategyFile:
    stage = 0
    operators: dict[str, Cuts] = {}
    parameters: dict[str, ParameterCut] = {}
    stages: dict[str, int] = {}
    for item in fields(data, 0, len(data)):
        if item.number == 1 and item.kind == VARINT:
            stage = item.value
        elif item.number == 2:
            name, inner = _named(data, item)
            parts = [*fields(data, inner.begin, inner.end)]
            operators[name] = tuple(tuple(_numbers(data, row)) for row in parts if row.number == 2)
            stages[name] = next((part.value for part in parts if part.number == 1 and part.kind == VARINT), 0)
        elif item.number == 3:
            name, inner = _named(data, item)
            parameters[name] = _parameter(data, inner)
        else:
            raise ValueError(f"field {item.number} is not known")
    return StrategyFile(operators, parameters, stage, {name: own for name, own in stages.items() if own != stage})


def _named(data: bytes, item: WireField) -> tuple[str, WireField]:
    parts = {f.number: f for f in _inside(data, item)}
    if 1 not in parts or 2 not in parts:
        raise ValueError(f"the entry before byte {item.end} has no name or no content")
    return text(data, parts[1]), parts[2]


def _inside(data: bytes, item: WireField) -> list[WireField]:
    if item.kind != BYTES:
        raise ValueError(f"field {item.number} before byte {item.end} is no message")
    return list(fields(data, item.begin, item.end))


def _numbers(data: bytes, item: WireField) -> list[int]:
    return [n for inner in _inside(data, item) for n in integers(data, inner)]


def _parameter(data: bytes, item: WireField) -> ParameterCut:
    rows: dict[int, list[list[int]]] = {}
    sizes: dict[int, int] = {}
    for inner in _inside(data, item):
        if inner.number <= 4:
            rows.setdefault(inner.number, []).append(_numbers(data, inner))
        elif inner.kind == VARINT:
            sizes[inner.number] = signed(inner.value)
    if 1 not in rows:
        raise ValueError("a parameter has no device matrix")
    return _sharding(rows[1][0], rows.get(2, [[]]), sizes.get(6, 0), sizes.get(7, 0), rows.get(3, [[]])[0],
                rows.get(4, [[]])[0], sizes.get(5, 0))  # fmt: skip


def _sharding(
    matrix: list[int], maps: list[list[int]], step: int, size: int, split: list[int], offsets: list[int], fields: int
) -> ParameterCut:
    selected = [row for row in maps if row]
    several = len(maps) > 1
    axes = [tuple(a for a in row if a >= 0) for row in selected] if several else [
        () if a < 0 else (a,) for row in selected for a in row
    ]  # fmt: skip
    return ParameterCut(tuple(matrix), tuple(axes), step, size, tuple(split), tuple(offsets), fields)


# As JSON ------------------------------------------------------------------------------------------


def _as_json(strategies: StrategyFile) -> str:
    operators = {
        name: {
            "stage": strategies.stages.get(name, strategies.stage),
            "parallel_strategy": [list(shards) for shards in strategy],
        }
        for name, strategy in sorted(strategies.operators.items())
    }
    parameters = {
        name: {
            "dev_matrix": list(sharding.device_matrix),
            "tensor_map": _map_rows(sharding, True),
            "param_split_shape": list(sharding.split_shape), "indices_offset": list(sharding.offsets),
            "field": sharding.field_size, "opt_weight_shard_step": sharding.optimizer_step,
            "opt_weight_shard_size": sharding.optimizer_size,
        }
        for name, sharding in sorted(strategies.parameters.items())
    }  # fmt: skip
    content = {
        "current_stage": strategies.stage, "parallel_strategy_item": operators, "parallel_layout_item": parameters
    }  # fmt: skip
    return json.dumps({ENTRY: _of(content), **content}, indent=1) + "\n"


def _from_json(data: bytes) -> StrategyFile:
    content = json_without_checksum(object_in(parsed_json(data), "it"))
    entries = _entries(content, "parallel_strategy_item", "operator")
    layouts = _entries(content, "parallel_layout_item", "parameter")
    operators = {
        name: tuple(tuple(_integers(shards, what)) for shards in _list(entry, "parallel_strategy", what))
        for name, (what, entry) in entries.items()
    }
    parameters = {name: _json_sharding(entry, what) for name, (what, entry) in layouts.items()}
    numbers = {name: entry.get("stage", 0) for name, (_, entry) in entries.items()}
    said = content.get("current_stage", 0)
    stage = said if type(said) is int else 0
    stages = {name: number if type(number) is int else 0 for name, number in numbers.items()}
    return StrategyFile(operators, parameters, stage, {name: own for name, own in stages.items() if own != stage})


def _json_sharding(entry: dict[str, Any], what: str) -> ParameterCut:
    """Return the sharding of one parameter. Raise ValueError if the entry is malformed."""
    given = _list(entry, "tensor_map", what)
    several = any(isinstance(row, list) for row in given)
    rows = [row if isinstance(row, list) else [row] for row in given] if several else [given]
    maps = [_integers(row, what) for row in rows]
    if several and len(maps) == 1:
        maps.append([])
    numbers = [entry.get(key, 0) for key in ("opt_weight_shard_step", "opt_weight_shard_size", "field")]
    step, size, field_size = _integers(numbers, what)
    split, offsets = (_integers(entry.get(key) or [], what) for key in ("param_split_shape", "indices_offset"))
    matrix = _integers(_list(entry, "dev_matrix", what), what)
    return _sharding(matrix, maps, step, size, split, offsets, field_size)


def _entries(content: dict[str, Any], key: str, kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return, by name, (label for messages, object) for all entries under a key, which may be missing."""
    found = object_in(content.get(key) or {}, key)
    named = {name: f"{kind} {name!r}" for name in found}
    return {name: (what, object_in(found[name], what)) for name, what in named.items()}


def _list(entry: dict[str, Any], key: str, what: str) -> list[Any]:
    value = entry.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} of {what} is {value!r:.60}, not a list" if key in entry else f"{what} has no {key}")
    return cast(list[Any], value)


def _integers(row: Any, what: str) -> list[int]:
    if not isinstance(row, list) or not all(type(n) is int for n in row):
        raise ValueError(f"{what} has {row!r:.60}, which is no list of integers")
    return cast(list[int], row)


def merged_stages(paths: Sequence[Path]) -> StrategyFile:
    """Return the joined contents of the files of all stages. Names of parameters begin with the stage, `1-net.weight`,
    because several stages may hold slices of one. Raise MspcError if a file is no strategy file, or has no operators or
    no parameters; two files of one stage differ."""
    first: dict[int, tuple[Path, StrategyFile]] = {}
    for path in paths:
        found = read_strategies(path)
        if not found.operators or not found.parameters:
            raise MspcError(f"The strategy file {shown_path(path)} is empty", kind=ValueError)
        stage = found.stages.get(next(iter(found.operators)), found.stage)
        before, known = first.setdefault(stage, (path, found))
        if known != found:
            raise MspcError(
                f"{shown_path(path)} and {shown_path(before)} are both of stage {stage}, and differ",
                kind=ValueError, notes=["remove the files of an earlier run"],
            )  # fmt: skip
    operators: dict[str, Cuts] = {}
    parameters: dict[str, ParameterCut] = {}
    stages: dict[str, int] = {}
    for stage, (_, found) in sorted(first.items()):
        operators.update(found.operators)
        stages.update(dict.fromkeys(found.operators, stage))
        parameters.update({f"{stage}-{name}": sharding for name, sharding in found.parameters.items()})
    return StrategyFile(operators, parameters, 1, stages)


def layout_of(name: str, sharding: ParameterCut) -> Layout:
    """Return the layout that a strategy file gives a parameter. Raise MspcError if the slices are unequal, or the
    optimizer's sharding is not possible."""
    if sharding.split_shape or sharding.field_size:
        raise MspcError(f"parameter {name!r} is sharded into unequal slices, which mspc does not read", kind=ValueError)
    last = len(sharding.device_matrix) - 1
    dims = [tuple(last - axis for axis in axes) for axes in sharding.tensor_map]
    if not sharding.optimizer_step or not sharding.optimizer_size or not dims:
        return Layout.of(sharding.device_matrix, dims)
    further = shard_further(sharding.device_matrix, dims, sharding.optimizer_size)
    if further is None:
        raise MspcError(
            f"parameter {name!r} is sharded into {sharding.optimizer_size} slices by the optimizer, which its device "
            f"matrix {list(sharding.device_matrix)} does not allow", kind=ValueError,
        )  # fmt: skip
    return further


def shard_further(mesh: Sequence[int], dims: Sequence[Axes], size: int) -> Layout | None:
    """Return the layout with dimension 0 sharded over `size` more ranks, -1 for all replicas. Return None if that is
    not possible."""
    mesh, dims = tuple(mesh), list(dims)
    used = {axis for axes in dims for axis in axes}
    free = [a for a in range(len(mesh)) if a not in used and mesh[a] > 1]
    left = math.prod(mesh[a] for a in free) if size == -1 else size
    taken: list[int] = []
    for a in reversed(free):
        if left == 1:
            break
        if left % mesh[a] == 0:
            left //= mesh[a]
            taken.insert(0, a)
            continue
        if mesh[a] % left:
            return None
        mesh = (*mesh[:a], mesh[a] // left, left, *mesh[a + 1 :])
        dims = [tuple(x + (x > a) for x in axes) for axes in dims]
        taken = [a + 1, *(x + 1 for x in taken)]
        left = 1
    if left != 1:
        return None
    return Layout.of(mesh, [(*dims[0], *taken), *dims[1:]])


def sharding_of(layout: Layout) -> ParameterCut:
    """Return the sharding that a strategy file states for a layout: one axis per dimension and a further sharding by
    the optimizer, if the layout has this form, else several axes per dimension."""
    mesh, dims = layout.mesh or (1,), layout.dims
    several = [d for d, axes in enumerate(dims) if len(axes) > 1]
    if several == [0]:
        base, rest = Layout.of(mesh, [dims[0][:1], *dims[1:]]), dims[0][1:]
        size = layout.size_of(rest)
        if shard_further(base.mesh, base.dims, size) == layout:
            step = math.prod(mesh[rest[-1] + 1 :])
            return ParameterCut(base.mesh, _maps(base.mesh, base.dims), step, size)
    return ParameterCut(tuple(mesh), _maps(mesh, dims))


def _maps(mesh: Sequence[int], dims: Sequence[Axes]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(len(mesh) - 1 - axis for axis in axes) for axes in dims)

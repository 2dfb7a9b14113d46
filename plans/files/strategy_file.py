"""Reads and writes MindSpore's strategy files: how operators and parameters of a network were sharded.

The format, as MindSpore 2.10 has it (`mindspore.train.node_strategy_pb2`), is `ParallelStrategyMap` of Protocol
Buffers, or JSON where the name ends in `.json`: the stage; for operators, called `MatMul_w` by a parameter that they
read, the shard counts of every operand; for parameters the device matrix, for every dimension the axis that shards it
(counted from the last, -1: none), and the further sharding of dimension 0 by the parallel optimizer. What mspc writes
has a checksum beside that (`strategy_checksum`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import make_folder, reason_of, shown_path, write_atomically
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import (
    BYTES,
    VARINT,
    WireField,
    fields,
    integers,
    put_bytes,
    put_integer,
    put_text,
    signed,
    text,
)
from mspc.ir.late_dataclass import dataclass
from mspc.plans.files.strategy_checksum import (
    json_with_checksum,
    json_without_checksum,
    with_checksum,
    without_checksum,
)

LARGEST = 1 << 28
"""Bytes of a file."""
MOST_RANKS = 1 << 20

Cuts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ParameterCut:
    """How a parameter was sharded.

    device_matrix: of the mesh. tensor_map: for every dimension the axes that shard it, counted from the last, the first
    the most significant; () for none. optimizer_step, optimizer_size: of the further sharding of
    dimension 0: how far apart the ranks are, and how many, -1 for all replicas; 0 for none. split_shape,
    offsets, field_size: of shardings into unequal slices, which mspc does not make."""

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    optimizer_step: int = 0
    optimizer_size: int = 0
    split_shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    field_size: int = 0


@dataclass(frozen=True)
class StrategyFile:
    """What a file says. stages: by operator the stage of the pipeline that it is in, where that is not `stage`."""

    operators: Mapping[str, Cuts] = field(default_factory=dict[str, Cuts])
    parameters: Mapping[str, ParameterCut] = field(default_factory=dict[str, ParameterCut])
    stage: int = 0
    stages: Mapping[str, int] = field(default_factory=dict[str, int])


def write_strategies(path: Path, strategies: StrategyFile) -> None:
    """Write a file. Raises MspcError where that cannot be."""
    is_json = path.suffix == ".json"
    content = _as_json(strategies).encode() if is_json else with_checksum(_as_message(strategies))
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write(content))


def read_strategies(path: Path) -> StrategyFile:
    """Read a file.

    Raises:
        MspcError: there is none, or it is no strategy file.
    """
    shown = shown_path(path)
    try:
        check_regular(path, LARGEST)
        data = path.read_bytes()
        if not data:
            raise ValueError("it is empty")
        found = _from_json(data) if path.suffix == ".json" else _from_message(without_checksum(data))
    except FileNotFoundError:
        raise MspcError(f"there is no strategy file {shown!r}", kind=ValueError) from None
    except OSError as error:
        raise MspcError(f"cannot read the strategy file {shown}: {reason_of(error)}") from None
    except ValueError as error:
        kinds = "a strategy file is MindSpore's (.ckpt) or its JSON (.json)"
        notes = [] if path.suffix in (".json", ".ckpt") else [kinds]
        raise MspcError(f"{shown} is no strategy file: {error}", kind=ValueError, notes=notes) from None
    for name, sharding in found.parameters.items():
        _check(shown, name, sharding)
    return found


def read_restore_ranks(path: Path) -> list[int]:
    """The ranks of a file of groups (`ParallelGroupMap`) that hold the same as the rank that wrote it. Raises
    MspcError."""
    shown = shown_path(path)
    try:
        check_regular(path, LARGEST)
        data = without_checksum(path.read_bytes())
        for outer in fields(data, 0, len(data)):
            if outer.number == 2 and outer.kind == BYTES:
                return [n for inner in fields(data, outer.begin, outer.end) for n in integers(data, inner)]
        raise ValueError("it names no ranks")
    except FileNotFoundError:
        raise MspcError(f"there is no file of groups {shown!r}", kind=ValueError) from None
    except OSError as error:
        raise MspcError(f"cannot read the file of groups {shown}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown} is no file of groups: {error}", kind=ValueError) from None


def write_groups(path: Path, groups: Mapping[str, Iterable[int]], alike: Iterable[int]) -> None:
    """Write a file of groups: those of a rank by name, and the ranks that hold the same as it. Raises MspcError."""
    items = [put_bytes(1, put_text(1, name) + put_bytes(2, _row(ranks))) for name, ranks in sorted(groups.items())]
    content = b"".join(items) + put_bytes(2, _row(alike))
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write(with_checksum(content)))


def _check(shown: str, name: str, sharding: ParameterCut) -> None:
    """Check that a sharding is one. Raises MspcError."""
    ranks = 1
    for size in sharding.device_matrix:
        ranks = min(ranks * size, MOST_RANKS + 1)  # a file may have a million of sizes
    used = [axis for axes in sharding.tensor_map for axis in axes]
    fits = all(size > 0 for size in sharding.device_matrix) and 0 < ranks <= MOST_RANKS
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


def _map_rows(sharding: ParameterCut) -> list[list[int]]:
    """One row of axes where at most one shards each dimension, else a row for every dimension."""
    if all(len(axes) < 2 for axes in sharding.tensor_map):
        return [[axes[0] if axes else -1 for axes in sharding.tensor_map]]
    rows = [list(axes) or [-1] for axes in sharding.tensor_map]
    return rows if len(rows) > 1 else [*rows, []]


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
            "tensor_map": _json_map(sharding),
            "param_split_shape": list(sharding.split_shape), "indices_offset": list(sharding.offsets),
            "field": sharding.field_size, "opt_weight_shard_step": sharding.optimizer_step,
            "opt_weight_shard_size": sharding.optimizer_size,
        }
        for name, sharding in sorted(strategies.parameters.items())
    }  # fmt: skip
    content = {
        "current_stage": strategies.stage, "parallel_strategy_item": operators, "parallel_layout_item": parameters
    }  # fmt: skip
    return json.dumps(json_with_checksum(content), indent=1) + "\n"


def _json_map(sharding: ParameterCut) -> list[Any]:
    if all(len(axes) < 2 for axes in sharding.tensor_map):
        return [axes[0] if axes else -1 for axes in sharding.tensor_map]
    return [list(axes) or [-1] for axes in sharding.tensor_map]


def _from_json(data: bytes) -> StrategyFile:
    content = json_without_checksum(_object(parsed_json(data), "it"))
    entries = _entries(content, "parallel_strategy_item", "operator")
    layouts = _entries(content, "parallel_layout_item", "parameter")
    operators = {
        name: tuple(tuple(_integers(shards, what)) for shards in _list(entry, "parallel_strategy", what))
        for name, (what, entry) in entries.items()
    }
    parameters = {name: _json_sharding(entry, what) for name, (what, entry) in layouts.items()}
    stage = _stage(content.get("current_stage", 0))
    stages = {name: _stage(entry.get("stage", 0)) for name, (_, entry) in entries.items()}
    return StrategyFile(operators, parameters, stage, {name: own for name, own in stages.items() if own != stage})


def _stage(number: Any) -> int:
    return number if type(number) is int else 0


def _json_sharding(entry: dict[str, Any], what: str) -> ParameterCut:
    """The sharding of one parameter. Raises ValueError."""
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
    """By name (what messages call it, its object) of all that is under a key, which may be missing."""
    found = _object(content.get(key) or {}, key)
    named = {name: f"{kind} {name!r}" for name in found}
    return {name: (what, _object(found[name], what)) for name, what in named.items()}


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r:.60}, not an object")
    return cast(dict[str, Any], value)


def _list(entry: dict[str, Any], key: str, what: str) -> list[Any]:
    value = entry.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} of {what} is {value!r:.60}, not a list" if key in entry else f"{what} has no {key}")
    return cast(list[Any], value)


def _integers(row: Any, what: str) -> list[int]:
    if not isinstance(row, list) or not all(type(n) is int for n in row):
        raise ValueError(f"{what} has {row!r:.60}, which is no list of integers")
    return cast(list[int], row)

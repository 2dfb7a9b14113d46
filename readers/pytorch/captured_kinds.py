"""Kinds of ranks of a captured job: ranks whose programs differ only in whole numbers that are linear in the ranks'
coordinates, as groups and offsets are. One rank of each kind is traced with a few others that give the slopes."""

from __future__ import annotations

import copy
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import entry, list_in, object_in, parsed_json, whole_in
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import coordinates

RANKS = "ranks.json"
"""The file of a captured folder that lists kinds of ranks; absent if every rank has a file."""
GROUPS = ("group_name", "process_group", "pg_name")
"""Arguments that name a group."""
SPLITS = ("aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default")
Place = tuple[Any, ...]
"""Keys and numbers that lead to a value in JSON."""
Slopes = Mapping[Place, int]


@dataclass(frozen=True)
class CapturedKind:
    """Ranks of one kind. traced: the rank whose program was recorded. slopes: for each axis of the mesh, the numbers
    that change with the coordinate there, and by how much."""

    traced: int
    ranks: tuple[int, ...]
    mesh: tuple[int, ...]
    slopes: tuple[Slopes, ...]

    def program_of(self, rank: int, content: Any) -> Any:
        """Return the content of a rank's file, from that of the traced rank. Raise ValueError if they do not fit."""
        made = content
        steps = [a - b for a, b in zip(coordinates(self.mesh, rank), coordinates(self.mesh, self.traced), strict=True)]
        for step, slopes in zip(steps, self.slopes, strict=True):
            made = changed(made, {path: slope * step for path, slope in slopes.items()}) if step else made
        return made


def changed(content: Any, changes: Mapping[Place, int]) -> Any:
    """Return a copy of JSON with these numbers added to its numbers. Raise ValueError if there are none."""
    made = copy.copy(content)
    parts: dict[Any, dict[Place, int]] = {}
    for path, change in changes.items():
        parts.setdefault(path[0], {})[path[1:]] = change
    for key, inner in parts.items():
        try:
            value = made[key]
        except (LookupError, TypeError):
            raise ValueError(f"{RANKS} changes {key!r:.40}, which the program does not have") from None
        if () not in inner:
            made[key] = changed(value, inner)
        elif type(value) is int and len(inner) == 1:
            made[key] = value + inner[()]
        else:
            raise ValueError(f"{RANKS} changes {key!r:.40}, which is {value!r:.40}, not a whole number")
    return made


def in_common_form(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file in the form that ranks of one kind share: with slices, and with its groups numbered
    in the order of their first use. Their names count the groups that a rank made, and differ from rank to rank."""
    content = with_slices(content)
    names: dict[str, str] = {}
    nodes: list[Any] = []
    for operator, given, *rest in content["nodes"]:
        for name in GROUPS:
            if given.get(name) in content["groups"]:
                given = {**given, name: names.setdefault(given[name], f"group {len(names)}")}
        nodes.append([operator, given, *rest])
    return {**content, "groups": {made: content["groups"][name] for name, made in names.items()}, "nodes": nodes}


def with_slices(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with a slice in place of a split of which one part is read: ranks that take their
    own part, as of a DTensor, do not differ in the names of tensors then."""
    slices = _slices(content)
    renamed = {name: made for _, name, made in slices.values()}
    nodes: list[Any] = []
    for at, (operator, given, by_name, results, place) in enumerate(content["nodes"] if slices else ()):
        given = _with_names(given, renamed)
        if at in slices:
            begin, name, made = slices[at]
            dim = given.get("dim", 0)
            ((_, dtype, shape),) = [each for each in results if each and each[0] == name]
            given = {"self": given["self"], "dim": dim, "start": begin, "end": begin + shape[dim]}
            operator, by_name, results = "aten.slice.Tensor", 0, [[made, dtype, shape]]
        nodes.append([operator, given, by_name, results, place])
    outputs = [[kind, name, renamed.get(value, value), *rest] for kind, name, value, *rest in content["outputs"]]
    return {**content, "nodes": nodes, "outputs": outputs} if slices else content


def _slices(content: Mapping[str, Any]) -> dict[int, tuple[int, str, str]]:
    """Return, by the number of a node that splits a tensor and of which one part is read, (the place where that begins,
    its name, its name in a form that does not depend on the part)."""
    read = {output[2] for output in content["outputs"]}
    for _, given, *_ in content["nodes"]:
        read.update(_names(given))
    found: dict[int, tuple[int, str, str]] = {}
    for at, (operator, given, _, results, _) in enumerate(content["nodes"]):
        if operator in SPLITS:
            parts = [number for number, each in enumerate(results) if each and each[0] in read]
            if len(parts) == 1 and len(results) > 1:
                begin = sum(each[2][given.get("dim", 0)] for each in results[: parts[0]])
                found[at] = begin, results[parts[0]][0], results[0][0]
    return found


def _names(value: Any) -> Iterator[str]:
    """Yield the names of tensors in an argument."""
    if isinstance(value, dict) and isinstance(value.get("tensor"), str):
        yield value["tensor"]
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _names(each)


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    """Return an argument in which tensors have other names."""
    if isinstance(value, list):
        return [_with_names(each, names) for each in value] if any(True for _ in _names(value)) else value
    if not isinstance(value, dict):
        return value
    tensor = value.get("tensor")
    if isinstance(tensor, str):
        return {"tensor": names[tensor]} if tensor in names else value
    return {name: _with_names(each, names) for name, each in value.items()}


def differences(first: Any, other: Any, path: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield the places and differences of whole numbers. Raise ValueError if anything else differs."""
    if first == other and type(first) is type(other):
        return
    if type(first) is not type(other) or type(first) not in (int, list, dict):
        raise ValueError(f"{path}: {first!r:.40} and {other!r:.40}")
    if isinstance(first, int):
        yield path, other - first
    elif isinstance(first, dict):
        if list(first) != list(other):
            raise ValueError(f"{path}: other entries")
        for key, value in first.items():
            yield from differences(value, other[key], (*path, key))
    else:
        if len(first) != len(other):
            raise ValueError(f"{path}: {len(first)} and {len(other)} entries")
        for at, (value, own) in enumerate(zip(first, other, strict=True)):
            yield from differences(value, own, (*path, at))


def _may_differ(place: Place) -> bool:
    """Return whether ranks of one kind may have other numbers at a place: arguments, ranks and seeds, but no sizes."""
    first, inner = place[0], place[2:3]
    return first in ("rank", "groups", "draws") or (first, *inner) in (("nodes", 1), ("inputs", "mesh"))


def _slopes(first: Any, other: Any, distance: int) -> Slopes | None:
    """Return the change of each number for one rank of `distance`; None if the programs differ otherwise."""
    try:
        found = dict(differences(first, other))
    except ValueError:
        return None
    if any(change % distance or not _may_differ(place) for place, change in found.items()):
        return None
    return {path: change // distance for path, change in found.items()}


def find_kinds(trace: Callable[[Sequence[int]], Sequence[Any]], mesh: tuple[int, ...]) -> list[CapturedKind]:
    """Return the kinds of all ranks of a mesh.

    The first and the last rank of each axis give the slopes, and the ranks in the middle and at the end of all axes
    must be as they predict; of several kinds whose numbers change alike, as those of the stages of a pipeline, this is
    checked for the first. An axis where it does not hold is divided: each of its coordinates gets kinds of its own.

    trace: returns the contents of the files of some ranks, which it records if it has not done so.
    """
    seen = set[Any]()

    def of(fixed: dict[int, int], free: list[int]) -> Iterator[CapturedKind]:
        def at(place: Mapping[int, int]) -> int:
            known = fixed | dict(place)
            return sum(known.get(axis, 0) * math.prod(mesh[axis + 1 :]) for axis in range(len(mesh)))

        ends = [at({axis: mesh[axis] - 1}) for axis in free]
        checked = [at({axis: mesh[axis] // 2 for axis in free}), at({axis: mesh[axis] - 1 for axis in free})]
        content, *others = trace([at({}), *ends])
        found = [_slopes(content, other, mesh[axis] - 1) for axis, other in zip(free, others, strict=True)]
        divided = [axis for axis, known in zip(free, found, strict=True) if known is None]
        if not divided:
            slopes = [dict[Place, int]() for _ in mesh]
            for axis, known in zip(free, found, strict=True):
                slopes[axis] |= known or {}
            ranks = [
                rank for rank in range(math.prod(mesh))
                if fixed.items() <= dict(enumerate(coordinates(mesh, rank))).items()
            ]  # fmt: skip
            kind = CapturedKind(at({}), tuple(ranks), mesh, tuple(slopes))
            changes = tuple((axis, _changes(content, slopes[axis])) for axis in free)
            if changes in seen or [kind.program_of(rank, content) for rank in checked] == trace(checked):
                seen.add(changes)
                yield kind
                return
        axis = (divided or free)[0]
        rest = [{}, *({other: mesh[other] - 1} for other in free if other != axis)]
        trace([at({axis: place, **end}) for place in range(mesh[axis]) for end in rest])  # at once, in all processes
        for place in range(mesh[axis]):
            yield from of({**fixed, axis: place}, [each for each in free if each != axis])

    return list(of({}, [axis for axis, size in enumerate(mesh) if size > 1]))


def _changes(content: Any, slopes: Slopes) -> frozenset[Any]:
    """Return by how much the arguments of operators, the groups and the rank change, whatever their places are."""
    found = set[Any]()
    for place, slope in slopes.items():
        node = content["nodes"][place[1]][0] if place[0] == "nodes" else None
        found.add((place[0], node, place[3:4] if node else (), slope))
    return frozenset(found)


def content_of(path: Path) -> dict[str, Any]:
    """Return the content of a file that `mspc capture` has just written, with the checksums of its values."""
    with zipfile.ZipFile(path) as archive:
        sums = [f"{each.CRC:08x}" for each in archive.infolist() if "value_" in each.filename]
        return {**in_common_form(json.loads(archive.read("step/capture.json"))), "sums": sums}


def write_kinds(path: Path, kinds: Sequence[CapturedKind]) -> None:
    """Write the kinds of ranks of a folder."""
    listed = [
        {"traced": kind.traced, "ranks": kind.ranks, "mesh": kind.mesh,
         "slopes": [[[list(place), slope] for place, slope in slopes.items()] for slopes in kind.slopes]}
        for kind in kinds
    ]  # fmt: skip
    path.write_text(json.dumps({"kinds": listed}))


def read_kinds(folder: Path) -> list[CapturedKind]:
    """Return the kinds of ranks of a folder; none if every rank has a file. Raise MspcError if the list is damaged."""
    path = folder / RANKS
    if not path.is_file():
        return []
    try:
        kinds = list_in(entry(object_in(parsed_json(path.read_bytes()), "it"), "kinds", "it"), "its kinds")
        found = [_kind(object_in(each, f"kind {at}"), f"kind {at}") for at, each in enumerate(kinds)]
        ranks = sorted(rank for kind in found for rank in kind.ranks)
        if ranks != list(range(len(ranks))) or any(math.prod(kind.mesh) != len(ranks) for kind in found):
            raise ValueError("its kinds do not have every rank once")
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise MspcError(f"{path} is damaged: {error}", code="E0116") from None
    return found


def _kind(owner: dict[str, Any], where: str) -> CapturedKind:
    def numbers(name: str, least: int) -> tuple[int, ...]:
        return tuple(whole_in(each, f"{where}: {name}", least, 1 << 31) for each in list_in(owner.get(name), where))

    slopes = list[Slopes]()
    for axis in list_in(owner.get("slopes"), where):
        own = dict[Place, int]()
        for pair in list_in(axis, where):
            place, slope = list_in(pair, where)
            if not all(isinstance(key, str | int) for key in list_in(place, where)) or not place:
                raise ValueError(f"{where} changes {place!r:.40}, which is no place")
            own[tuple(place)] = whole_in(slope, where, -(1 << 62), 1 << 62)
        slopes.append(own)
    ranks, mesh = numbers("ranks", 0), numbers("mesh", 1)
    if len(slopes) != len(mesh) or owner.get("traced") not in ranks:
        raise ValueError(f"{where} does not fit its mesh")
    return CapturedKind(owner["traced"], ranks, mesh, tuple(slopes))

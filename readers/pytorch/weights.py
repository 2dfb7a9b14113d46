"""The tensors of an exported program: a checkpoint whose one file is the archive, read where it is needed.

`data/weights/model_weights_config.json` has a place for every parameter and buffer, and
`data/constants/model_constants_config.json` for every constant: a member of the archive, and how the tensor lies in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.checkpoint.files import Files
from mspc.checkpoint.pieces import StoredSlice, box_of_shape
from mspc.checkpoint.reading import Checkpoint, Stored
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.readers.pytorch.archive import Archive, Place
from mspc.readers.pytorch.codes import STRIDED, element_type
from mspc.readers.pytorch.entries import (
    LARGEST_SIZE,
    MOST_DIMENSIONS,
    entry,
    flag_in,
    list_in,
    object_in,
    tagged,
    text_in,
    whole_in,
)


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor whose elements do not follow each other in its member of the archive.

    place: of the member. first: the tensor's first element there. strides: elements between neighbours of a dimension.
    """

    place: Place
    first: int
    strides: tuple[int, ...]


@dataclass
class Weights(Checkpoint):
    """The tensors of an archive. strided: those that do not lie there element after element."""

    strided: Mapping[str, Strided] = field(default_factory=dict[str, Strided])

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Any:
        """A tensor or a part of it, as a checkpoint gives it."""
        found = self.strided.get(name)
        if found is None:
            return Checkpoint.read(self, name, slices)
        type = self.tensors[name].type
        dtype = type.dtype.numpy
        room = self.files.mapped(0, found.place.offset, found.place.size)
        steps = tuple(step * dtype.itemsize for step in found.strides)
        room = room if room.ctypes.data % dtype.itemsize == 0 else room.copy()
        view = np.ndarray(type.shape, dtype, room, found.first * dtype.itemsize, steps)
        return np.array(view if slices is None else view[tuple(slices)], order="C")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as a config describes it."""

    name: str
    member: str
    type: TensorType
    first: int
    strides: tuple[int, ...]
    trains: bool

    @property
    def elements(self) -> int:
        """Elements of the member from its begin to the tensor's last one."""
        if not self.type.size:
            return 0
        return self.first + 1 + sum((n - 1) * s for n, s in zip(self.type.shape, self.strides, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the elements follow each other as those of an array do."""
        step = 1
        for n, stride in zip(reversed(self.type.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != step:
                return False
            step *= n
        return True


    @property
    def overlaps_itself(self) -> bool:
        """Whether one number of the member may be several elements."""
        end = 0
        for stride, n in sorted((s, n) for n, s in zip(self.type.shape, self.strides, strict=True) if n > 1):
            if stride <= end:
                return bool(self.type.size)
            end += stride * (n - 1)
        return False


def weights_of(archive: Archive, model: str) -> tuple[Weights, Mapping[str, str]]:
    """The tensors of a program in an archive, and those that are another one under a second name, by which.

    Raises:
        MspcError: a config is damaged or names what is not there, or tensors are pickled or compressed.
    """
    entries = [
        each
        for folder, config in (("data/weights/", "weights"), ("data/constants/", "constants"))
        for each in _entries(archive, folder, f"{folder}{model}_{config}_config.json")
    ]
    tensors: dict[str, Stored] = {}
    strided: dict[str, Strided] = {}
    first_with: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for each in entries:
        place = archive.place(each.member)
        if not place.size and each.type.size:
            continue  # exported without values: tensors of the device meta, or fake ones
        if each.elements * each.type.dtype.itemsize > place.size:
            raise MspcError(
                f"{archive.shown} is damaged: tensor {each.name!r} of type {each.type} with strides {each.strides} "
                f"from element {each.first} on does not fit into the {place.size} bytes of {each.member}"
            )
        if each.name in tensors:
            raise MspcError(f"{archive.shown} is damaged: it has tensor {each.name!r:.100} twice")
        key = (each.member, each.type, each.first, each.strides)
        if first_with.setdefault(key, each.name) != each.name:
            same[each.name] = first_with[key]
        pieces: tuple[StoredSlice, ...] = ()
        if each.is_dense:
            offset = place.offset + each.first * each.type.dtype.itemsize
            pieces = (StoredSlice(box_of_shape(each.type.shape), 0, ((offset, each.type.nbytes),)),)
        else:
            strided[each.name] = Strided(place, each.first, each.strides)
        tensors[each.name] = Stored(each.type, pieces)
    _check_overlaps(archive, entries)
    files = Files([archive.path], [archive.size])
    return Weights(archive.shown, files, tensors, strided=strided), same


def _check_overlaps(archive: Archive, entries: Sequence[_Entry]) -> None:
    """An update of a parameter must change no other, unless all of both are the same. Raises MspcError."""
    by_member: dict[str, list[_Entry]] = {}
    for each in entries:
        if each.trains and archive.place(each.member).size:
            if each.overlaps_itself:
                raise MspcError(f"{archive.shown}: elements of parameter {each.name!r:.100} lie on top of each other")
            if each.is_dense:
                by_member.setdefault(each.member, []).append(each)
    for member, found in by_member.items():
        found.sort(key=lambda each: (each.first, each.elements))
        for one, other in itertools.pairwise(found):
            same = (one.first, one.type) == (other.first, other.type)
            if not same and other.first < one.elements:
                raise MspcError(
                    f"{archive.shown}: parameters {one.name!r:.100} and {other.name!r:.100} overlap in {member}"
                )


def _entries(archive: Archive, folder: str, name: str) -> list[_Entry]:
    if name not in archive:
        return []
    try:
        owner = object_in(parsed_json(archive.text(name)), "it")
        listed = object_in(entry(owner, "config", "it"), "its config")
        return [_entry(archive, folder, key, value) for key, value in listed.items()]
    except ValueError as error:
        raise MspcError(f"{archive.shown} is damaged: {name}: {error}") from None


def _entry(archive: Archive, folder: str, name: str, value: Any) -> _Entry:
    where = f"tensor {name!r:.100}"
    owner = object_in(value, where)
    member = folder + text_in(entry(owner, "path_name", where), f"{where}: path_name")
    if flag_in(owner.get("use_pickle", False), f"{where}: use_pickle"):
        raise MspcError(
            f"{archive.shown}: {where} is pickled, in {member}, and mspc loads no pickle, which could run anything",
            notes=["plain tensors are stored as bytes; what is pickled is an object or a subclass of Tensor"],
        )
    about = object_in(entry(owner, "tensor_meta", where), f"{where}: tensor_meta")
    if about.get("layout", STRIDED) != STRIDED:
        raise ValueError(f"{where} is not strided, as sparse tensors are")
    sizes, strides = (_sizes(entry(about, key, where), f"{where}: {key}") for key in ("sizes", "strides"))
    if len(sizes) != len(strides):
        raise ValueError(f"{where} has {len(sizes)} sizes and {len(strides)} strides")
    first = _size(entry(about, "storage_offset", where), f"{where}: storage_offset")
    type = TensorType(element_type(entry(about, "dtype", where), where), sizes)
    trains = flag_in(owner.get("is_param", False), where) and flag_in(about.get("requires_grad", False), where)
    return _Entry(name, member, type, first, strides, trains)


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    listed = list_in(value, where)
    if len(listed) > MOST_DIMENSIONS:
        raise ValueError(f"{where} are {len(listed)}")
    return tuple(_size(each, where) for each in listed)


def _size(value: Any, where: str) -> int:
    tag, content = tagged(value, where)
    if tag != "as_int":
        raise ValueError(f"{where} is {value!r:.60}, not a size that is known")
    return whole_in(content, where, 0, LARGEST_SIZE)

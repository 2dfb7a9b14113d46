"""Files of exported programs: the zip archive, its JSON, the codes in it, and the stored weights."""

from __future__ import annotations

import itertools
import os
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mspc.checkpoint.files import Files
from mspc.checkpoint.stored_tensors import Checkpoint, StoredSlice, TensorPieces, box_of_shape
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import entry, flag_in, list_in, object_in, parsed_json, text_in, whole_in
from mspc.ir.files.regular import LARGEST_TEXT, check_name, check_regular
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType, dtype_of

MAX_DIMENSIONS = 64
def tagged(value: Any, where: str) -> tuple[str, Any]:
    """Return (tag, content) of an object that has one entry, as {"as_int": 3} has. Entries that are null do not
    count."""
    found = [(tag, content) for tag, content in object_in(value, where).items() if content is not None]
    if len(found) != 1:
        raise ValueError(f"{where} is {value!r:.60}, not an object with one entry")
    return found[0]


ELEMENT_TYPES: dict[int, DType] = {number: dtype_of(name) for number, name in {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64",
}.items()}  # fmt: skip
NOT_HERE: dict[int, str] = {
    9: "complex32", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
}  # fmt: skip
"""Element types that PyTorch has and mspc has not."""
LAYOUTS: dict[int, str] = {
    1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc", 6: "mkldnn", 7: "strided",
}  # fmt: skip
STRIDED = 7
MEMORY_FORMATS: dict[int, str] = {
    1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format",
}  # fmt: skip


def element_type(code: object, where: str) -> DType:
    """Return the element type of a number. Raise ValueError if there is none, or mspc does not have it."""
    found = ELEMENT_TYPES.get(code) if type(code) is int else None
    if found is None:
        name = NOT_HERE.get(code) if type(code) is int else None
        if name is not None:
            raise ValueError(f"{where} is of {name}, which mspc does not have")
        raise ValueError(f"{where} has element type {code!r:.40}, which no version of the format knows")
    return found


def named(code: object, names: dict[int, str], where: str) -> str:
    """Return the name of a number. Raise ValueError if it has none."""
    found = names.get(code) if type(code) is int else None
    if found is None:
        raise ValueError(f"{where} is {code!r:.40}, which no version of the format knows")
    return found


# All members of an archive are in one folder. Texts may be compressed; tensors are stored as they are, so that each is
# a range of bytes of the file.


LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
"""The header before every member: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7."""
LOCAL_MAGIC = b"PK\x03\x04"
ENCRYPTED = 1
"""The bit of a member's flags that says so."""
MAX_MEMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The place in the file of the bytes of an uncompressed member."""

    offset: int
    size: int


class Archive:
    """An archive by the names of its members inside of their folder.

    Raise MspcError if there is no such file, it is no zip archive or cut short, or its members are not as declared:
    outside of its folder, twice, overlapping, encrypted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = shown_path(path)
        try:
            check_regular(path)
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self._members = self._checked(file)
        except FileNotFoundError:
            raise MspcError(f"there is no file {self.shown!r}", code="E0101") from None
        except (OSError, EOFError) as error:
            raise MspcError(f"cannot read {self.shown}: {reason_of(error)}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self, folder: str = "", ending: str = "") -> list[str]:
        """Return the members in a folder whose names end so, in order."""
        return sorted(name for name in self._members if name.startswith(folder) and name.endswith(ending))

    def text(self, name: str) -> bytes:
        """Return the content of a member that is a text. Raise MspcError if there is none, or it is damaged or too
        large."""
        info = self._member(name)[0]
        if info.file_size > LARGEST_TEXT:
            raise MspcError(f"{self.shown}: {name} has {info.file_size} bytes; a text may have {LARGEST_TEXT}")
        try:
            with zipfile.ZipFile(self.path) as opened, opened.open(info) as member:
                content = member.read(info.file_size + 1)  # compares the checksum at the end
                if len(content) != info.file_size:
                    raise zipfile.BadZipFile(f"it has {len(content)} bytes or more, and {info.file_size} were written")
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise self._damaged(f"{name}: {error}") from None
        except OSError as error:
            raise MspcError(f"cannot read {self.shown}: {reason_of(error)}") from None
        except Exception as error:  # any error of the libraries of compression
            raise self._damaged(f"{name}: {error}") from None
        return content

    def place(self, name: str) -> ArchivePlace:
        """Return the place of a member's bytes. Raise MspcError if there is none, or it is compressed."""
        info, place = self._member(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise MspcError(
                f"{self.shown}: {name} is compressed, and tensors are read in place",
                notes=["torch.export.save stores them as they are"],
            )
        return place

    def _member(self, name: str) -> tuple[zipfile.ZipInfo, ArchivePlace]:
        try:
            return self._members[name]
        except KeyError:
            raise self._damaged(f"it has no {name}") from None

    def _damaged(self, what: str) -> MspcError:
        return MspcError(f"{self.shown} is damaged: {what}", code="E0116")

    def _checked(self, file: BinaryIO) -> dict[str, tuple[zipfile.ZipInfo, ArchivePlace]]:
        try:
            with zipfile.ZipFile(file) as opened:
                infos = [info for info in opened.infolist() if not info.is_dir()]
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            file.seek(0)
            if file.read(len(LOCAL_MAGIC)) == LOCAL_MAGIC:
                raise self._damaged(f"it has no list of its members, as a file cut short: {error}") from None
            raise MspcError(
                f"{self.shown} is no exported program of PyTorch: it is no zip archive",
                notes=["torch.export.save(torch.export.export(model, inputs), 'model.pt2') writes one"], code="E0701",
            ) from None
        if len(infos) > MAX_MEMBERS:
            raise self._damaged(f"it has {len(infos)} members")
        found: dict[str, tuple[zipfile.ZipInfo, ArchivePlace]] = {}
        ends: list[tuple[int, int, str]] = []
        for info in infos:
            if "\\" in info.orig_filename or ":" in info.filename or "\0" in info.orig_filename:
                raise MspcError(f"{self.shown} names {info.orig_filename!r:.100}, which can be no member of a program")
            check_name(info.filename, self.shown)
            if info.flag_bits & ENCRYPTED:
                raise MspcError(f"{self.shown}: {info.filename} is encrypted")
            name = info.filename.partition("/")[2] or info.filename
            if name in found:
                raise self._damaged(f"it has {name!r:.100} twice")
            place = self._member_offset(file, info)
            found[name] = info, place
            ends.append((info.header_offset, place.offset + place.size, name))
        ends.sort()
        for (_, end, name), (begin, _, other) in itertools.pairwise(ends):
            if begin < end:
                raise self._damaged(f"{name} and {other} lie on top of each other")
        self._check_folder(infos)
        return found

    def _check_folder(self, infos: list[zipfile.ZipInfo]) -> None:
        folders = sorted({info.filename.partition("/")[0] for info in infos if "/" in info.filename})
        if len(folders) > 1:
            raise MspcError(
                f"{self.shown} is no exported program of PyTorch: its members stand in {len(folders)} folders, "
                f"{folders[0]!r:.40} and {folders[1]!r:.40} among them", code="E0701"
            )

    def _member_offset(self, file: BinaryIO, info: zipfile.ZipInfo) -> ArchivePlace:
        """Return the place of a member by the header before it."""
        file.seek(max(0, info.header_offset))  # negative where bytes are missing
        header = file.read(LOCAL_HEADER.size)
        if info.header_offset < 0 or len(header) < LOCAL_HEADER.size or not header.startswith(LOCAL_MAGIC):
            raise self._damaged(f"{info.filename} is not at the position in the list of members")
        *_, name_length, extra_length = LOCAL_HEADER.unpack(header)
        name = file.read(name_length)
        if name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
            raise self._damaged(f"{info.filename} is called {name!r:.100} where it stands")
        offset = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        if offset + info.compress_size > self.size:
            raise self._damaged(f"{info.filename} ends after the end of the file")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise self._damaged(f"{info.filename} is stored in {info.compress_size} bytes and has {info.file_size}")
        return ArchivePlace(offset, info.compress_size)


# `data/weights/model_weights_config.json` has a place for every parameter and buffer, and
# `data/constants/model_constants_config.json` for every constant: a member of the archive, and the strides of the
# tensor.


@dataclass(frozen=True, slots=True)
class StridedWeight:
    """A tensor whose elements do not follow each other in its member of the archive.

    place: of the member. first: the tensor's first element there. strides: elements between neighbours of a dimension.
    """

    place: ArchivePlace
    first: int
    strides: tuple[int, ...]


@dataclass
class ProgramWeights(Checkpoint):
    """The tensors of an archive. strided: those that do not lie there element after element."""

    strided: Mapping[str, StridedWeight] = field(default_factory=dict[str, StridedWeight])

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Any:
        """Return a tensor or a part of it, as a checkpoint gives it."""
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
        """Return whether the elements follow each other as those of an array do."""
        step = 1
        for n, stride in zip(reversed(self.type.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != step:
                return False
            step *= n
        return True

    @property
    def overlaps_itself(self) -> bool:
        """Return whether one number of the member may be several elements."""
        end = 0
        for stride, n in sorted((s, n) for n, s in zip(self.type.shape, self.strides, strict=True) if n > 1):
            if stride <= end:
                return bool(self.type.size)
            end += stride * (n - 1)
        return False


def weights_of(archive: Archive, model: str) -> tuple[ProgramWeights, Mapping[str, str]]:
    """Return the tensors of a program in an archive, and those that are another one under a second name, with that
    name.

    Raise MspcError if a config is damaged or names a missing member, or tensors are pickled or compressed.
    """
    entries = [
        each
        for folder, config in (("data/weights/", "weights"), ("data/constants/", "constants"))
        for each in _entries(archive, folder, f"{folder}{model}_{config}_config.json")
    ]
    tensors: dict[str, TensorPieces] = {}
    strided: dict[str, StridedWeight] = {}
    first_with: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for each in entries:
        place = archive.place(each.member)
        if not place.size and each.type.size:
            continue  # exported without values: tensors of the device meta, or fake ones
        if each.elements * each.type.dtype.itemsize > place.size:
            raise MspcError(
                f"{archive.shown} is damaged: tensor {each.name!r} of type {each.type} with strides {each.strides} "
                f"from element {each.first} on does not fit into the {place.size} bytes of {each.member}", code="E0116"
            )
        if each.name in tensors:
            raise MspcError(f"{archive.shown} is damaged: it has tensor {each.name!r:.100} twice", code="E0116")
        key = (each.member, each.type, each.first, each.strides)
        if first_with.setdefault(key, each.name) != each.name:
            same[each.name] = first_with[key]
        pieces: tuple[StoredSlice, ...] = ()
        if each.is_dense:
            offset = place.offset + each.first * each.type.dtype.itemsize
            pieces = (StoredSlice(box_of_shape(each.type.shape), 0, ((offset, each.type.nbytes),)),)
        else:
            strided[each.name] = StridedWeight(place, each.first, each.strides)
        tensors[each.name] = TensorPieces(each.type, pieces)
    _check_overlaps(archive, entries)
    files = Files([archive.path], [archive.size])
    return ProgramWeights(archive.shown, files, tensors, strided=strided), same


def _check_overlaps(archive: Archive, entries: Sequence[_Entry]) -> None:
    """Raise MspcError if tensors overlap that are not the same: an update of a parameter must change no other."""
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
        raise MspcError(f"{archive.shown} is damaged: {name}: {error}", code="E0116") from None


def _entry(archive: Archive, folder: str, name: str, value: Any) -> _Entry:
    where = f"tensor {name!r:.100}"
    owner = object_in(value, where)
    member = folder + text_in(entry(owner, "path_name", where), f"{where}: path_name")
    if flag_in(owner.get("use_pickle", False), f"{where}: use_pickle"):
        raise MspcError(
            f"{archive.shown}: {where} is pickled, in {member}, and mspc loads no pickle, which could run anything",
            notes=["plain tensors are stored as bytes; objects and subclasses of Tensor are pickled"],
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
    if len(listed) > MAX_DIMENSIONS:
        raise ValueError(f"{where} are {len(listed)}")
    return tuple(_size(each, where) for each in listed)


def _size(value: Any, where: str) -> int:
    tag, content = tagged(value, where)
    if tag != "as_int":
        raise ValueError(f"{where} is {value!r:.60}, not a size that is known")
    return whole_in(content, where, 0)

"""The archive of an exported program: a zip file whose members are looked at as bytes, each inside of its own place.

All members stand in one folder of the archive. Texts may be compressed; tensors are stored as they are, so that each is
a range of bytes of the file.
"""

from __future__ import annotations

import itertools
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.inside import check_name
from mspc.ir.files.regular import LARGEST_TEXT, check_regular
from mspc.ir.late_dataclass import dataclass

LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
"""What stands before every member: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7."""
LOCAL_MAGIC = b"PK\x03\x04"
ENCRYPTED = 1
"""The bit of a member's flags that says so."""
MOST_MEMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a member that is stored as it is lie in the file."""

    offset: int
    size: int


class Archive:
    """An archive by the names of its members inside of their folder.

    Raises:
        MspcError: there is no such file, it is no zip archive or cut short, or its members are not what they are said
            to be: outside of its folder, twice, on top of each other, encrypted.
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
            raise MspcError(f"there is no file {self.shown!r}") from None
        except (OSError, EOFError) as error:
            raise MspcError(f"cannot read {self.shown}: {reason_of(error)}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self, folder: str = "", ending: str = "") -> list[str]:
        """The members in a folder whose names end so, in order."""
        return sorted(name for name in self._members if name.startswith(folder) and name.endswith(ending))

    def text(self, name: str) -> bytes:
        """The content of a member that is a text. Raises MspcError: there is none, or it is damaged or too large."""
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
        except Exception as error:  # what the libraries of compression raise
            raise self._damaged(f"{name}: {error}") from None
        return content

    def place(self, name: str) -> Place:
        """Where a member's bytes lie. Raises MspcError: there is none, or it is compressed."""
        info, place = self._member(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise MspcError(
                f"{self.shown}: {name} is compressed, and tensors are read where they lie in the file",
                notes=["torch.export.save stores them as they are"],
            )
        return place

    def _member(self, name: str) -> tuple[zipfile.ZipInfo, Place]:
        try:
            return self._members[name]
        except KeyError:
            raise self._damaged(f"it has no {name}") from None

    def _damaged(self, what: str) -> MspcError:
        return MspcError(f"{self.shown} is damaged: {what}")

    def _checked(self, file: BinaryIO) -> dict[str, tuple[zipfile.ZipInfo, Place]]:
        try:
            with zipfile.ZipFile(file) as opened:
                infos = [info for info in opened.infolist() if not info.is_dir()]
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            file.seek(0)
            if file.read(len(LOCAL_MAGIC)) == LOCAL_MAGIC:
                raise self._damaged(f"it has no list of its members, as a file cut short: {error}") from None
            raise MspcError(
                f"{self.shown} is no exported program of PyTorch: it is no zip archive",
                notes=["torch.export.save(torch.export.export(model, inputs), 'model.pt2') writes one"],
            ) from None
        if len(infos) > MOST_MEMBERS:
            raise self._damaged(f"it has {len(infos)} members")
        found: dict[str, tuple[zipfile.ZipInfo, Place]] = {}
        ends: list[tuple[int, int, str]] = []
        for info in infos:
            name = self._name(info)
            if name in found:
                raise self._damaged(f"it has {name!r:.100} twice")
            place = self._local(file, info)
            found[name] = info, place
            ends.append((info.header_offset, place.offset + place.size, name))
        ends.sort()
        for (_, end, name), (begin, _, other) in itertools.pairwise(ends):
            if begin < end:
                raise self._damaged(f"{name} and {other} lie on top of each other")
        self._check_folder(infos)
        return found

    def _name(self, info: zipfile.ZipInfo) -> str:
        """The name inside of the folder that all members stand in."""
        if "\\" in info.orig_filename or ":" in info.filename or "\0" in info.orig_filename:
            raise MspcError(f"{self.shown} names {info.orig_filename!r:.100}, which can be no member of a program")
        check_name(info.filename, self.shown)
        if info.flag_bits & ENCRYPTED:
            raise MspcError(f"{self.shown}: {info.filename} is encrypted")
        return info.filename.partition("/")[2] or info.filename

    def _check_folder(self, infos: list[zipfile.ZipInfo]) -> None:
        folders = sorted({info.filename.partition("/")[0] for info in infos if "/" in info.filename})
        if len(folders) > 1:
            raise MspcError(
                f"{self.shown} is no exported program of PyTorch: its members stand in {len(folders)} folders, "
                f"{folders[0]!r:.40} and {folders[1]!r:.40} among them"
            )

    def _local(self, file: BinaryIO, info: zipfile.ZipInfo) -> Place:
        """The place of a member by what stands before it."""
        file.seek(max(0, info.header_offset))  # negative where bytes are missing
        header = file.read(LOCAL_HEADER.size)
        if info.header_offset < 0 or len(header) < LOCAL_HEADER.size or not header.startswith(LOCAL_MAGIC):
            raise self._damaged(f"{info.filename} does not stand where the list of members says")
        *_, name_length, extra_length = LOCAL_HEADER.unpack(header)
        name = file.read(name_length)
        if name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
            raise self._damaged(f"{info.filename} is called {name!r:.100} where it stands")
        offset = info.header_offset + LOCAL_HEADER.size + name_length + extra_length
        if offset + info.compress_size > self.size:
            raise self._damaged(f"{info.filename} ends behind the end of the file")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise self._damaged(f"{info.filename} is stored in {info.compress_size} bytes and has {info.file_size}")
        return Place(offset, info.compress_size)

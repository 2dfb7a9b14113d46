"""Finds the hosts of a job: from a host file, a list on the command line, or a rank table.

A host file has a line for every host, as Open MPI reads it: `NAME slots=N`, N being 1 without it; `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of
from mspc.ir.files.regular import read_text
from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Location

_SLOTS = re.compile(r"(?<![\w-])slots\s*=\s*(\S+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:%-]{0,254}")
SHOWN = 20
"""Hosts that a message names."""
_COUNT = re.compile(r"0{0,9}[1-9][0-9]{0,5}")
"""A number of slots: more than a million ranks are a slip of the finger."""


@dataclass(frozen=True)
class Host:
    """A host, and how many ranks it takes. devices: numbers of its devices in the order of its ranks; (): from 0 on."""

    name: str
    slots: int = 1
    devices: tuple[int, ...] = ()


def read_host_file(path: Path) -> list[Host]:
    """The hosts of a file, in its order.

    Raises:
        MspcError: it cannot be read, or a line is none of a host file; the message names the line.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else reason_of(error)
        raise MspcError(f"cannot read the host file {str(path)!r}: {reason}") from None
    found: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = Location(str(path), number, text=line)
        name, *rest = text.split(maxsplit=1)
        slots = _SLOTS.search(rest[0]) if rest else None
        if not is_host(name) or (rest and slots is None):
            raise MspcError("a line of a host file is NAME slots=N", where)
        count = slots[1] if slots else "1"
        if not _COUNT.fullmatch(count):
            raise MspcError(f"slots={count:.40} of host {name!r} must be 1 or more, and below a million", where)
        if name in found:
            raise MspcError(f"host {name!r} is twice in the host file", where)
        found[name] = Host(name, int(count))
    if not found:
        raise MspcError(f"the host file {str(path)!r} names no host", notes=["a line is NAME slots=N"])
    return list(found.values())


def read_hosts(text: str) -> list[Host]:
    """The hosts of `NAME:SLOTS,NAME:SLOTS`. Raises MspcError for other text."""
    found: dict[str, Host] = {}
    for part in text.split(","):
        name, colon, slots = part.strip().rpartition(":")
        if not colon:
            name, slots = slots, "1"
        if not is_host(name) or not _COUNT.fullmatch(slots):
            raise MspcError(f"--host {text!r:.200}: {part!r:.100} is no NAME or NAME:SLOTS")
        if name in found:
            raise MspcError(f"--host {text!r:.200}: {name!r} is there twice")
        found[name] = Host(name, int(slots))
    return list(found.values())


def is_host(name: str) -> bool:
    """Whether a text can be the name or the address of a host."""
    return _NAME.fullmatch(name) is not None


def check_slots(hosts: Sequence[Host], ranks: int) -> None:
    """Raises MspcError where the hosts take fewer ranks."""
    slots = sum(host.slots for host in hosts)
    if ranks > slots:
        listed = ", ".join(f"{host.name} {host.slots}" for host in hosts[:SHOWN])
        listed += f" and {len(hosts) - SHOWN} more hosts" * (len(hosts) > SHOWN)
        raise MspcError(
            f"{ranks} ranks, but the hosts have {slots} slot{'s' * (slots != 1)}: {listed}",
            notes=["give a host more slots, or start fewer ranks"],
        )

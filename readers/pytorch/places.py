"""Where a node comes from, in the words of an exported program: its call stack and the modules that were entered."""

from __future__ import annotations

import re

from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Frames, Location

FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})(?:, in .*)?$')
MOST_FRAMES = 256
REPEATED = re.compile(r"@\d+$")
"""What stands behind a module's path where it is called once more."""
_OLD_PATH = re.compile(r"\['?([^'\]]*)'?\]")


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules around a node: the path of the innermost one, and the classes from the outermost one on."""

    path: str = ""
    classes: tuple[str, ...] = ()


def frames_in(text: str) -> Frames:
    """The lines of a call stack as Python prints it, the innermost first. Lines that are none are passed over."""
    found: list[Location] = []
    file, number = "", 0
    for line in text.split("\n"):
        match = FRAME.match(line)
        if match is not None:
            if number:
                found.append(Location(file, number))
            file, number = match["file"], int(match["line"])
        elif number:
            found.append(Location(file, number, text=line.strip()))
            number = 0
    if number:
        found.append(Location(file, number))
    return tuple(found[: -MOST_FRAMES - 1 : -1])


def modules_in(text: str) -> Modules:
    """The modules of `L__self__,,__main__.Net;L__self__fc,fc,torch.nn.modules.linear.Linear`."""
    path, classes = "", list[str]()
    for each in text.split(";"):
        parts = each.split(",")
        if len(parts) < 3 or parts[0].startswith("_empty_nn_module_stack"):
            continue
        path = _path(",".join(parts[1:-1]))
        classes.append(parts[-1].rpartition(".")[2])
    return Modules(path, tuple(classes))


def _path(text: str) -> str:
    """`layers.0.fc`, of older versions `L['self'].layers[0].fc`, too."""
    path = REPEATED.sub("", text).removeprefix("L['self']")
    return _OLD_PATH.sub(r".\1", path).strip(".")

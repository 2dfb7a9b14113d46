"""This module reads the comment lines of a file: facts of the header, scopes and source spans. `mspc.ir.text.parser`
uses it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mspc.ir.location import Frames, Location
from mspc.ir.text.source_text import name_of

_OWN_FRAME = re.compile(r"# In file (.*?)\((\d{1,15})\)/(.*)/(?: (\d{1,15})~(\d{1,15}))?\Z")
_FOREIGN_FRAME = re.compile(r"# In file (.*?):(\d{1,15})(?:~\d{1,15})?, (\d{1,15})~(\d{1,15})/(.*)/\Z")
_SCOPE = re.compile(r"# (?:scope|Scope|Fullname with scope): \((.*)\)\Z")
_FACT = re.compile(r"#\s*(IR entry|IR dialect|Total subgraphs?|Total params)\s*:\s*@?(.*)\Z")
_PARAMETERS = re.compile(r"# Parameters: \d+, \((.*)\)\Z")
_SHARED = "<~~This line of code can be shared by multiple nodes, and may be duplicated."
_OTHER_NODES = ("# Corresponding forward node candidate:", "# Corresponding code candidate:")


@lru_cache(maxsize=16384)
def read_trailer(text: str, with_frames: bool) -> tuple[str, Frames]:
    """(scope, frames) that the comment lines below a node tell; other comments are passed over.

    mspc writes the innermost frame first. MindSpore's newer form (`file:line, columns/ source/`) has it last.
    """
    scope = ""
    own: list[Location] = []
    foreign: list[Location] = []
    for raw in text.split("\n"):
        line = raw.lstrip().rstrip("\r")
        if line.startswith("# In file "):
            if with_frames:
                _read_frame(line, own, foreign)
        elif line.startswith(_OTHER_NODES):
            break
        elif not scope and (match := _SCOPE.match(line.rstrip())):
            scope = name_of(match.group(1))
    return scope, (*own, *reversed(foreign))


def _read_frame(line: str, own: list[Location], foreign: list[Location]) -> None:
    if match := _OWN_FRAME.match(line):
        file, number, source, column, end = match.groups()
        own.append(Location(file, int(number), int(column or 0), int(end or 0), source))
    elif match := _FOREIGN_FRAME.match(line.replace(_SHARED, "")):
        file, number, column, end, source = match.groups()
        foreign.append(Location(file, int(number), int(column) + 1, int(end) + 1, source.rstrip("/")))


def header_facts(text: str) -> dict[str, str]:
    """`IR entry`, `IR dialect`, `Total subgraph`, `Total params` of the comment lines, as texts."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if match := _FACT.match(line.strip()):
            found[match.group(1).removesuffix("s") if "subgraph" in line else match.group(1)] = match.group(2)
    return found


def parameter_types(text: str) -> list[str] | None:
    """Texts of the types in a comment `# Parameters: 2, (<..>, <..>)`; None where there is none."""
    for line in text.split("\n"):
        if match := _PARAMETERS.match(line.strip()):
            return re.findall(r"<[^<>]*>", match.group(1))
    return None

"""A rank's graph is kept on disk for the next start, which reads it in less time than the rank's passes take.

A file's name is made of all that these passes read: the text of the graph that they begin with, the rank, the names of
the passes, and the versions of what computes. The file is the graph's text behind that text's digest. A file that is
damaged, or written by hand, counts as missing and is written anew; what cannot be written is not kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cache_folder, drop_oldest, make_cache_folder, read_own, write_private
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import print_graph
from mspc.ir.text.values import has_exact_text
from mspc.passes.base import VERIFY

LEAST_NODES = 100
"""Of the graph that the passes begin with: those of a smaller one take no longer than reading its text."""
MOST_BYTES = 256 << 20
"""Of all files in the folder; of more, those that were not used for longest go."""
_ROOT = Path(__file__).resolve().parent.parent
_OTHERS = ("tests", "benchmarks", "samples", "docs", "build", "dist")
"""Folders of a checkout from which a compile takes nothing."""
_DIGEST = 64
_SUFFIX = ".ir"


@dataclass(frozen=True)
class KeptGraphs:
    """The kept graphs of a program.

    folder: where they are. program: a digest of all that the passes of ranks read but for the rank.
    """

    folder: Path
    program: str

    def graph(self, rank: int, make: Callable[[], Graph]) -> Graph:
        """The graph of a rank: read, or made now and written. Raises what `make` raises."""
        found = self.read(rank)
        if found is None:
            found = make()
            _write(self._path(rank), found)
        return found

    def read(self, rank: int) -> Graph | None:
        """The graph of a rank that an earlier start has left, if any."""
        return _read(self._path(rank))

    def _path(self, rank: int) -> Path:
        return self.folder / f"{self.program}.{rank}{_SUFFIX}"


def kept_graphs(graph: Graph, text: str, passes: Sequence[str]) -> KeptGraphs | None:
    """The kept graphs that these passes make of a graph, whose text is `text`.

    None where there are none: the graph is small, has operators of others than mspc or values that its text does not
    tell, there is no folder, or passes are to be checked, and so must run.
    """
    folder, graphs = cache_folder("graphs"), graph.graphs()
    if folder is None or os.environ.get(VERIFY) or sum(len(each.nodes) for each in graphs) < LEAST_NODES:
        return None
    if not _is_of_mspc(graphs) or not has_exact_text(graph):
        return None
    try:
        words = (*_versions(), *passes, text)
    except OSError:  # mspc is not in files
        return None
    return KeptGraphs(folder, hashlib.sha256(_encoded("\0".join(words))).hexdigest())


def _read(path: Path) -> Graph | None:
    """The graph of a file; None where there is none, or it is damaged."""
    content = read_own(path)
    if content is None:
        return None
    told, text = content[:_DIGEST], content[_DIGEST + 1 :]
    if hashlib.sha256(text).hexdigest().encode() != told:
        return None
    from mspc.ir.text.parser import parse  # late: a first start reads none
    from mspc.ops.op import REGISTRY

    try:
        found = parse(text.decode("utf-8", "surrogatepass"), REGISTRY, str(path)).main
    except (MspcError, ValueError, RecursionError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it was used now
    return found


def _write(path: Path, graph: Graph) -> None:
    if has_exact_text(graph) and _is_of_mspc(graph.graphs()):
        write_text(path, print_graph(graph))


def write_text(path: Path, text: str) -> None:
    """Write a graph's text with its digest, where the folder takes it; older files go where the folder is full."""
    encoded = _encoded(text)
    content = hashlib.sha256(encoded).hexdigest().encode() + b"\n" + encoded
    with contextlib.suppress(OSError, MspcError):
        make_cache_folder(path.parent)
        write_private(path, content)
        drop_oldest(path.parent, _SUFFIX, MOST_BYTES)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # of a script's names that are no UTF-8


def _is_of_mspc(graphs: Sequence[Graph]) -> bool:
    """Whether all operators are mspc's own, on whose sources the name of the file depends, and are found by name."""
    from mspc.ops.op import REGISTRY

    kinds = {type(node.op) for each in graphs for node in each.nodes}
    package = f"{__name__.partition('.')[0]}."
    return all(kind.__module__.startswith(package) and REGISTRY.get(kind.__name__) is kind for kind in kinds)


@cache
def _versions() -> tuple[str, ...]:
    """What tells apart compilers that make different graphs: mspc's sources, as they were when this process began to
    compile, and what computes constants."""
    told = hashlib.sha256()
    for path, size, changed in sorted(sources(str(_ROOT))):
        told.update(f"{path}\0{size}\0{changed}\0".encode("utf-8", "surrogateescape"))
    return told.hexdigest(), sys.version, np.__version__


def sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, bytes and time of the last change of every source below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".lark")):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns
            elif not entry.name.startswith(("_", ".")) and entry.name not in _OTHERS and entry.is_dir():
                yield from sources(entry.path)


class LateGraph(Graph):
    """Any of its parts that is read makes all of them; that may raise what `make` raises."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Graph]) -> None:
        # What is not set here is made by `__getattr__`, which Python asks for attributes that are not there.
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name not in Graph.__slots__:
            raise AttributeError(name)
        made = self._make()
        for part in Graph.__slots__:
            setattr(self, part, getattr(made, part))
        return getattr(self, name)

"""Cache of rank graphs on disk. The next start reads a graph in less time than the rank's passes take.

The name of a file is computed from all that these passes read: the text of the graph they begin with, the rank, the
names of the passes, and the versions of the compiler. The file is a digest of the graph's text, followed by the text. A
file that is damaged, or written by hand, counts as missing and is replaced. A graph that cannot be written is not
cached.
"""

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

MIN_NODES = 100
"""Fewest nodes of a graph, before the passes, that is cached: the passes over a smaller one take no longer than reading
its text."""
MAX_BYTES = 256 << 20
"""Most bytes of all files in the folder. Beyond that the least recently used files are deleted."""
_ROOT = Path(__file__).resolve().parent.parent
_OTHERS = ("tests", "benchmarks", "samples", "docs", "build", "dist")
"""Folders of a checkout that a compile does not use."""
_DIGEST = 64
_SUFFIX = ".ir"


@dataclass(frozen=True)
class KeptGraphs:
    """The cached graphs of a program.

    folder: of the files. program: a digest of everything that the passes of ranks read, except the rank.
    """

    folder: Path
    program: str

    def graph(self, rank: int, make: Callable[[], Graph]) -> Graph:
        """Return the graph of a rank: read it, or make it now and write it. Raise any error that `make` raises."""
        found = self.read(rank)
        if found is None:
            found = make()
            if has_exact_text(found) and _is_of_mspc(found.graphs()):
                write_text(self._path(rank), print_graph(found))
        return found

    def read(self, rank: int) -> Graph | None:
        """Return the graph of a rank that an earlier start has saved, or None."""
        return _read(self._path(rank))

    def _path(self, rank: int) -> Path:
        return self.folder / f"{self.program}.{rank}{_SUFFIX}"


def kept_graphs(graph: Graph, text: str, passes: Sequence[str]) -> KeptGraphs | None:
    """Return the cache of the graphs that these passes make of a graph. `text` is the text of that graph.

    Return None if nothing can be cached: the graph is small, it has operators not defined by mspc or values without an
    exact text, there is no folder, or passes are to be checked and so must run.
    """
    folder, graphs = cache_folder("graphs"), graph.graphs()
    if folder is None or os.environ.get(VERIFY) or sum(len(each.nodes) for each in graphs) < MIN_NODES:
        return None
    if not _is_of_mspc(graphs) or not has_exact_text(graph):
        return None
    try:
        words = (*_versions(), *passes, text)
    except OSError:  # mspc is not installed as files
        return None
    return KeptGraphs(folder, hashlib.sha256(_encoded("\0".join(words))).hexdigest())


def _read(path: Path) -> Graph | None:
    """Read the graph of a file; None for a missing or damaged file."""
    content = read_own(path)
    if content is None:
        return None
    told, text = content[:_DIGEST], content[_DIGEST + 1 :]
    if hashlib.sha256(text).hexdigest().encode() != told:
        return None
    from mspc.ir.text.parser import parse  # imported late: a first start reads none
    from mspc.ops.op import REGISTRY

    try:
        found = parse(text.decode("utf-8", "surrogatepass"), REGISTRY, str(path)).main
    except (MspcError, ValueError, RecursionError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # mark it as used now
    return found


def write_text(path: Path, text: str) -> None:
    """Write a graph's text with its digest, if the folder is writable. The oldest files are deleted if the folder is
    full."""
    encoded = _encoded(text)
    content = hashlib.sha256(encoded).hexdigest().encode() + b"\n" + encoded
    with contextlib.suppress(OSError, MspcError):
        make_cache_folder(path.parent)
        write_private(path, content)
        drop_oldest(path.parent, _SUFFIX, MAX_BYTES)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # names in a script may be no UTF-8


def _is_of_mspc(graphs: Sequence[Graph]) -> bool:
    """Return whether all operators are defined by mspc, whose sources determine the name of the file, and are
    registered by name."""
    from mspc.ops.op import REGISTRY

    kinds = {type(node.op) for each in graphs for node in each.nodes}
    package = f"{__name__.partition('.')[0]}."
    return all(kind.__module__.startswith(package) and REGISTRY.get(kind.__name__) is kind for kind in kinds)


@cache
def _versions() -> tuple[str, ...]:
    """Return the facts that distinguish compilers with different graphs: mspc's sources at the start of the first
    compile of this process, and the versions of Python and NumPy, which compute constants."""
    told = hashlib.sha256()
    for path, size, changed in sorted(sources(str(_ROOT))):
        told.update(f"{path}\0{size}\0{changed}\0".encode("utf-8", "surrogateescape"))
    return told.hexdigest(), sys.version, np.__version__


def sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path, size in bytes and modification time of every source below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".lark")):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns
            elif not entry.name.startswith(("_", ".")) and entry.name not in _OTHERS and entry.is_dir():
                yield from sources(entry.path)


class LateGraph(Graph):
    """A graph that is made on first access to any of its parts. The access may raise any error that `make` raises."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Graph]) -> None:
        # Slots not set here are filled by `__getattr__`, which Python calls for missing attributes.
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name not in Graph.__slots__:
            raise AttributeError(name)
        made = self._make()
        for part in Graph.__slots__:
            setattr(self, part, getattr(made, part))
        return getattr(self, name)

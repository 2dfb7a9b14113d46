"""`mspc opt`: reads a text graph, runs passes on it, prints the result. For tests and for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mspc.commands.report.loudness import NORMAL, Loudness
from mspc.commands.report.progress import Progress
from mspc.ir.diagnostics import MspcError
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph, print_module
from mspc.ops.check_types import check_types
from mspc.ops.modules import load_operators
from mspc.ops.op import REGISTRY
from mspc.passes.base import Pass, PassManager, parse_passes


def optimize(file: Path, passes: str, loudness: Loudness = NORMAL) -> str:
    """The text of the graph in `file` (`-`: stdin) after `passes`. On a terminal stderr shows which pass runs.

    Raises:
        MspcError: the file is missing or damaged, a pass is unknown, or a pass refuses the graph.
    """
    load_operators()
    steps = parse_passes(passes)
    module = parse(_read(file), REGISTRY, str(file))
    if not steps:
        return print_module(module)
    if len(module.graphs) != 1:
        raise MspcError(
            f"{file} holds {len(module.graphs)} graphs; passes run on one flat graph",
            notes=["without -p the file is read and printed"],
        )
    check_types(module.graphs[0])
    graph, manager = module.graphs[0], PassManager(loudness.on_pass(), verify=False)
    with Progress(not loudness.quiet and not loudness.verbose) as progress:
        graph = manager.run(graph, _announced(steps, progress))
    try:
        graph.verify()
    except AssertionError as error:
        raise MspcError(
            f"{file}: the passes leave a graph that cannot be printed: {error}",
            notes=["the file has been edited, or the passes do not follow each other"],
        ) from None
    return print_graph(graph)


def _announced(steps: Sequence[Pass], progress: Progress) -> Iterator[Pass]:
    for number, step in enumerate(steps, 1):
        progress.show(f"{step.name} ({number} of {len(steps)})")
        yield step


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if file == Path("-") else file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MspcError(f"there is no file {str(file)!r}") from None
    except UnicodeDecodeError:
        raise MspcError(f"{file} is not text") from None
    except OSError as error:
        raise MspcError(f"cannot read {file}: {error.strerror}") from None

"""`mspc opt` reads a text graph, runs passes on it and prints the result, for tests and for people."""

from __future__ import annotations

import sys
from pathlib import Path

from mspc.commands.facts.equal_ranks import dump_text
from mspc.commands.report.verbosity import NORMAL, Loudness, ProgressLine
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import LARGEST_TEXT
from mspc.ir.graph import Graph, Node
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph, print_module
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import Pass, PassManager, parse_passes


def optimize(file: Path, passes: str, loudness: Loudness = NORMAL) -> str:
    """Return the text of the graph in `file` (`-`: stdin) after `passes`. On a terminal, stderr shows the current pass.
    Raise MspcError if the file is missing or damaged, a pass is unknown, or a pass refuses the graph."""
    steps = parse_passes(passes)
    module = parse(_read(file), REGISTRY, str(file))
    if not steps:
        return print_module(module)
    if module.dialect and len(module.graphs) != 1:
        raise MspcError(
            f"{file} holds {len(module.graphs)} graphs of {module.dialect}; passes run on graphs of mspc",
            notes=["without -p the file is read and printed"],
        )
    graph = module.main
    check_graph(graph)
    manager = PassManager(loudness.on_pass(), verify=False)
    with ProgressLine(not loudness.quiet and not loudness.verbose) as progress:
        for number, step in enumerate(steps, 1):
            progress.show(f"{step.name} ({number} of {len(steps)})")
            graph = _applied(manager, step, graph, file)
    try:
        graph.verify()
    except AssertionError as error:
        raise MspcError(
            f"{file}: the passes leave a graph that cannot be printed: {error}",
            notes=["the file has been edited, or the passes do not follow each other"],
        ) from None
    return print_graph(graph)


def _applied(manager: PassManager, step: Pass, graph: Graph, file: Path) -> Graph:
    """Return the graph after a pass. A graph from a file may be one that no compile makes: any error of the pass then
    becomes an MspcError with the pass's name and the node on which it failed."""
    try:
        return manager.run(graph, [step])
    except MspcError:
        raise
    except Exception as error:
        at = _node_at(error)
        where = f" at {at.label}" if at is not None else ""
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise MspcError(
            f"{file}: pass {step.name} cannot work on this graph{where}: {told}",
            notes=["the file has been edited, or the passes do not follow each other"],
            frames=at.frames if at is not None else (),
        ) from error


def _node_at(error: BaseException) -> Node | None:
    """Return the variable `node` of the innermost function of a traceback that has one; None without one."""
    found: Node | None = None
    trace = error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        found = node if isinstance(node, Node) else found
        trace = trace.tb_next
    return found


def _read(file: Path) -> str:
    """Return the text of a file, or of stdin, decoded as UTF-8 in any locale. Raise MspcError if it cannot be read, or
    exceeds LARGEST_TEXT bytes."""
    if file != Path("-"):
        return dump_text(file)
    if not hasattr(sys.stdin, "buffer"):
        return sys.stdin.read()
    with reading(Path("stdin"), "text", "is not text"):
        content = sys.stdin.buffer.read(LARGEST_TEXT + 1)
        if len(content) > LARGEST_TEXT:
            raise MspcError(f"stdin gives more than {LARGEST_TEXT} bytes; a text may have that many")
        return content.decode("utf-8")

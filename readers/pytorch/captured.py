"""Files of `mspc.capture`: the program of one rank with its groups of ranks and the placements of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.ir.late_dataclass import dataclass
from mspc.readers.pytorch.archive import Archive, entry, list_in, object_in, text_in, whole_in
from mspc.readers.pytorch.exported_program import Argument, ExportedNode, ExportedProgram
from mspc.readers.pytorch.graph_reader import read_program

ABOUT = "extra/capture.json"
VERSION = 1
"""The version of `ABOUT` that is read."""
_GROUPS = frozenset({"group_name", "process_group"})
"""Arguments that name a group."""


@dataclass(frozen=True)
class CapturedStep:
    """A training step as one rank of `ranks` runs it.

    program: its groups are named by their ranks. groups: the ranks of each. placements: of parameters, buffers and
    inputs, as PyTorch has them, by name.
    """

    program: ExportedProgram
    rank: int
    ranks: int
    groups: Mapping[str, tuple[int, ...]]
    placements: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_step(path: Path) -> CapturedStep:
    """Return the step in a file. Raise MspcError if it is none, or damaged, or of another version."""
    archive = Archive(path)
    if ABOUT not in archive:
        raise MspcError(f"{archive.shown} is no captured step: it has no {ABOUT}")
    try:
        about = object_in(parsed_json(archive.text(ABOUT)), "it")
        version = whole_in(entry(about, "version", "it"), "its version", 0)
        if version != VERSION:
            raise MspcError(f"{archive.shown} is of version {version} of captures; mspc reads version {VERSION}")
        ranks = whole_in(entry(about, "ranks", "it"), "its ranks", 1)
        rank = whole_in(entry(about, "rank", "it"), "its rank", 0, ranks - 1)
        found = object_in(entry(about, "groups", "it"), "its groups")
        groups = {
            name: tuple(whole_in(each, f"group {name!r:.40}", 0, ranks - 1) for each in list_in(listed, name))
            for name, listed in found.items()
        }
        placements = object_in(entry(about, "placements", "it"), "its placements")
    except ValueError as error:
        raise MspcError(f"{archive.shown} is damaged: {ABOUT}: {error}") from None
    labels = {name: f"ranks {'-'.join(map(str, members))}" for name, members in groups.items()}
    program = read_program(path)
    nodes = tuple(_with_labels(node, labels) for node in program.graph.nodes)
    program = replace(program, graph=replace(program.graph, nodes=nodes))
    return CapturedStep(program, rank, ranks, {labels[name]: members for name, members in groups.items()}, placements)


def _with_labels(node: ExportedNode, labels: Mapping[str, str]) -> ExportedNode:
    """Return the node with its group named by its ranks, which all ranks call the same."""
    if not any(name in _GROUPS for name, _ in node.arguments):
        return node
    arguments: tuple[tuple[str, Argument], ...] = tuple(
        (name, labels[text_in(value, name)] if name in _GROUPS else value) for name, value in node.arguments
    )
    return replace(node, arguments=arguments)

"""Reasons of the collectives of a captured step: the parameters or the operator whose values travel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mspc.readers.pytorch.captured_kinds import GROUPS
from mspc.readers.pytorch.exported_program import ExportedNode, ExportedProgram, NodeResult, names_in

_SAME = re.compile(
    r"aten\.(_?to_copy|_to_copy|alias|as_strided|cat|chunk|clone|copy_?|detach|div|expand|flatten|mul|narrow|new_\w+|"
    r"permute|reshape|select|slice|split\w*|squeeze|stack|t|transpose|unbind|unsqueeze|view|_unsafe_view)\b|fsdp\.|"
    r"c10d\.|_c10d_functional\.(?!all_to_all)"
)
"""Kinds whose results are the same values in another order, type or scale."""
_OUTPUTS = frozenset({"output_tensor", "output_tensors", "out", "all_gather_output"})
"""Arguments that a kind of `_SAME` overwrites."""
_ADDS = {"sum": "adds up", "avg": "averages", "max": "takes the maximum of", "min": "takes the minimum of",
         "product": "multiplies"}  # fmt: skip


def with_reasons(program: ExportedProgram) -> ExportedProgram:
    """Return the program with a reason at each node that names a group."""
    nodes, tensors = program.graph.nodes, tensors_of_views(program.graph.nodes)
    stored = {each.name: (each.qualified,) for each in program.inputs if each.kind in ("parameter", "buffer")}
    parameters = _spread(nodes, tensors, stored, forward=True)
    targets = dict[str, tuple[str, ...]]()
    for output in program.outputs:
        if output.kind == "gradient_to_parameter" and isinstance(output.value, NodeResult):
            name = tensors.get(output.value.name, output.value.name)
            targets[name] = (*targets.get(name, ()), output.target)
    gradients = _spread(nodes, tensors, targets, forward=False)
    losses = [each.value.name for each in program.outputs if each.kind == "loss" and isinstance(each.value, NodeResult)]
    makers, backward, found = dict[str, ExportedNode](), False, list[ExportedNode]()
    for node in nodes:
        if any(name in GROUPS for name, _ in node.arguments):
            node = replace(node, reason=_reason(node, tensors, parameters, gradients, makers, backward))
        elif not _SAME.match(node.target):
            makers |= dict.fromkeys((tensors.get(name, name) for name in node.results), node)
        for name in (*node.results, *_written(node)):
            maker = next((makers[t] for each in _read(node) if (t := tensors.get(each, each)) in makers), None)
            if _SAME.match(node.target) and maker is not None:
                makers.setdefault(tensors.get(name, name), maker)
        backward = backward or any(name in node.results for name in losses)
        found.append(node)
    return replace(program, graph=replace(program.graph, nodes=tuple(found)))


def _reason(
    node: ExportedNode, tensors: Mapping[str, str], parameters: Mapping[str, tuple[str, ...]],
    gradients: Mapping[str, tuple[str, ...]], makers: Mapping[str, ExportedNode], backward: bool,
) -> str:  # fmt: skip
    reads = [tensors.get(name, name) for name in _read(node)]
    made = [tensors.get(name, name) for name in (*node.results, *_written(node))]
    reduces = next((str(value) for name, value in node.arguments if name in ("reduce_op", "op")), "")
    verb = _ADDS.get(reduces.partition("*")[0]) or ("gathers" if "gather" in node.target else "sends")
    if held := _joined(parameters, reads):
        return f"{verb} {_listed(held)}"
    if of := _joined(gradients, made):
        return f"{verb} gradients of {_listed(of)}"
    maker = next((makers[name] for name in reads if name in makers), None)
    what = {"adds up": "partial sums", "gathers": "slices"}.get(verb, "results")
    which = f" of {maker.target.split('.')[1]}" + (f" in {maker.scope}" if maker.scope else "") if maker else ""
    return f"{verb} {what}{which}" + " in the backward pass" * backward


def _spread(
    nodes: Iterable[ExportedNode], tensors: Mapping[str, str], known: Mapping[str, tuple[str, ...]], forward: bool
) -> dict[str, tuple[str, ...]]:
    """Return the names that the tensors of a program are known by: from operands of `_SAME` to results, or back."""
    found = {tensors.get(name, name): names for name, names in known.items()}
    for node in nodes if forward else reversed(tuple(nodes)):
        if not _SAME.match(node.target):
            continue
        ends = [[tensors.get(name, name) for name in each] for each in (_read(node), (*node.results, *_written(node)))]
        sources, results = ends if forward else reversed(ends)
        names = _joined(found, sources)
        if names and (not forward or all(name in found for name in sources)):
            for name in results:
                found.setdefault(name, names)
    return found


def tensors_of_views(nodes: Iterable[ExportedNode]) -> dict[str, str]:
    """Return the tensor of which each name is a view."""
    found: dict[str, str] = {}
    for node in nodes:
        target = node.target.partition(".")[2].partition(".")[0]
        reads = _read(node)
        if target in ("view", "as_strided", "slice", "detach", "alias", "_unsafe_view", "wait_tensor") and reads:
            found |= dict.fromkeys(node.results, found.get(reads[0], reads[0]))
    return found


def _read(node: ExportedNode) -> list[str]:
    return [name for argument, value in node.arguments if argument not in _OUTPUTS for name in names_in(value)]


def _written(node: ExportedNode) -> list[str]:
    return [name for argument, value in node.arguments if argument in _OUTPUTS for name in names_in(value)]


def _joined(known: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for name in names for each in known.get(name, ())))


def _listed(names: tuple[str, ...]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")

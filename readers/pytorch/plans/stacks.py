"""Stacks of experts' weights of which a plan gives every rank some experts: they are cut inside of every expert.

Which rows go to an expert is known to the run alone, and so is how many. Ranks with whole experts would send rows by
numbers that differ from step to step; a rank with a slice of every expert has as much of the weights, one sum is sent
of what the experts give, and no rank waits for the one with the most rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.readers.pytorch.plans.packed import PRODUCTS, TURNS, values_in
from mspc.readers.pytorch.plans.styles import OPEN, STACK, STYLES, Style
from mspc.readers.pytorch.program import ExportedProgram, NodeResult

FIRST, SECOND = STYLES["packed_colwise"], STYLES["rowwise"]
RANK = 3


def inside_of_experts(program: ExportedProgram, styles: Mapping[str, Style]) -> dict[str, Style]:
    """The styles with those of stacks: products with what the module takes are cut by what they give, and products
    with what others of the stacks have given by what they take."""
    stacks = {
        each.name: each.qualified for each in program.inputs
        if each.kind == "parameter" and (style := styles.get(each.qualified)) is not None and style.weight == STACK
    }  # fmt: skip
    found = dict(styles)
    ranks = {each.name: len(each.type.shape) for each in program.inputs if each.type is not None}
    for name, qualified in stacks.items():
        found[qualified] = STYLES["local_params"] if ranks.get(name) != RANK else FIRST
        assert found[qualified].weight == OPEN
    turned = {name: name for name in stacks}
    given: dict[str, str] = {}
    """Values that come of a stack's product, with its module."""
    for node in program.graph.nodes:
        operands = values_in(tuple(value for _, value in node.arguments))
        if node.target in TURNS and operands and operands[0] in turned:
            turned[node.results[0]] = turned[operands[0]]
            continue
        weight = dict(node.arguments).get(PRODUCTS[node.target][0]) if node.target in PRODUCTS else None
        stack = turned.get(weight.name) if isinstance(weight, NodeResult) else None
        modules = {given[name] for name in operands if name in given}
        if stack is not None:
            module = stacks[stack].rpartition(".")[0]
            if module in modules:
                found[stacks[stack]] = SECOND
            modules.add(module)
        for module in modules:
            if f"{node.scope}.".startswith(f"{module}."):
                given.update(dict.fromkeys(node.results, module))
    return found

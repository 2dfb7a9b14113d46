"""Counts what it costs to recompute a cell for gradients: its operators once more, and what they send."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from mspc.ir.graph import Node, element_types, operand_types
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.passes.lib.choices import ShardingChoice, exchanges
from mspc.passes.lib.plan_header import OPERATIONS, Terms
from mspc.passes.lib.recomputation import RecomputableCell
from mspc.search.model.model import CostModel
from mspc.search.model.step_facts import touched
from mspc.search.model.uneven_costs import UnevenCosts
from mspc.search.model.variables import Source
from mspc.search.solver.elimination import Table


def entering(model: CostModel, block: RecomputableCell) -> Iterator[tuple[Source, Node, int]]:
    """What the operators that are computed again read: (source, reader, place)."""
    for node in block.again:
        if node not in model.of:
            continue
        for place, value in enumerate(node.inputs):
            source = model.source(value)
            if source is not None and source[0] in model.of:
                yield source, node, place


class AgainCosts:
    """Factors of the costs of a model's cells that are computed again."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        terms = Terms.of(model.search.graph.attrs)
        self._compute: tuple[dict[int, int], int] = {2: terms.compute_half}, terms.compute
        self._uneven = UnevenCosts(terms, model.hosts)

    def add(self, block: RecomputableCell, switch: int) -> None:
        """What computing a cell again costs. switch: the variable that decides on it."""
        for node in block.again:
            if node in self.model.of:
                self._compute_again(node, switch)
        for source, node, place in entering(self.model, block):
            if source[0] in block.inside:
                self._send_again(source, node, place, switch)

    def _compute_again(self, node: Node, switch: int) -> None:
        model, op = self.model, cast(Op, node.op)
        variable, types = model.variables[model.of[node]], operand_types(node)
        rule = model.search.rules[node]
        assert rule is not None
        inside = exchanges(node)
        operations = op.operations(types)
        special, default = self._compute
        rate = special.get(types[0].dtype.itemsize, default) if operations else 0
        key = ("again", op if inside else None, operations, rate, types, node.type, id(variable))

        def made() -> Table:
            share = np.array([choice.work for choice in variable.choices]) / math.prod(rule.sizes)
            found = share * operations / OPERATIONS * rate
            found = found + model.touch * np.array([touched(node, choice) for choice in variable.choices])
            if inside:
                found = found + [self._inside(op, types, choice) for choice in variable.choices]
            return found[:, None] * [0.0, 1.0]

        model.subject = node
        model.factor((model.of[node], switch), key, made)

    def _inside(self, op: Op, types: Sequence[TensorType], choice: ShardingChoice) -> float:
        """What ranks send inside of an operator, and do beside even shares."""
        form = op.in_form(choice.inputs)
        sent = form.moved_bytes(types, choice.inputs)
        return sent + self._uneven.of(form, types, choice.inputs, sent)

    def _send_again(self, source: Source, reader: Node, place: int, switch: int) -> None:
        """What is brought to a reader inside of a cell is brought there once more."""
        model, (value, index) = self.model, source
        type = element_types(value.type)[index]
        own, variable = model.of[value], model.of[reader]
        outputs, needs = model.variables[own].outputs[index], model.variables[variable].operands[place]
        key = ("again", outputs.tobytes(), needs.tobytes(), len(type.shape), type.nbytes)

        def made() -> Table:
            return model.sent("there", outputs, needs, type, model.latency)[..., None] * [0.0, 1.0]

        model.subject = value
        model.factor((own, variable, switch), key, made)

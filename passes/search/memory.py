"""What a rank holds, as tables beside those of a search's costs, and the ways to hold less.

Most is alive either where gradients begin, with everything that they will read, or where updates begin, with all
gradients; weights and states are always there. Each of the two is a row of factors whose sum must be within the memory.
What lowers them is a decision like a layout: parameters that are cut further than their readers need them (as
optimizer parallel does), which are gathered once and kept, or gathered again for gradients; and cells that are computed
again. What that costs is in the factors of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Constant, Node, Parameter, Value, element_types
from mspc.ops.op import Op
from mspc.passes.search.cell_blocks import Block, blocks_of
from mspc.passes.search.elimination import Factor, Table
from mspc.passes.search.footprint import Footprint
from mspc.passes.search.model import Model, Numbers, Source, Variable
from mspc.passes.search.step_facts import copies, touched
from mspc.passes.search.terms import OPERATIONS, Terms
from mspc.passes.sharding.choices import operand_types

ALWAYS = -1
"""In place of a cell's variable: whatever is computed again."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """How gradients read a tensor. source: the tensor, or a view of it. variable: of the operator as whose operand they
    do, ALWAYS where they read it as it was made. needs: the layouts for that. switch: the variable of a cell for whose
    sake alone they read it."""

    source: Source
    variable: int
    needs: Numbers
    switch: int = ALWAYS


class Memory:
    """The memory of a model's assignments. begin, end: factors whose sums are the bytes that a rank holds where
    gradients begin and where updates begin. switches: the variable of every cell that may be computed again, whose
    choices are to keep its results and not to."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = model.search.graph
        self.users = model.search.traffic.users
        terms = Terms.of(self.graph.attrs)
        self._compute: tuple[dict[int, int], int] = {2: terms.compute_half}, terms.compute
        self.static: list[Factor] = []
        self.kept: list[Factor] = []
        self.gradients: list[Factor] = []
        self._parameters()
        direct = self._direct_readings()
        kept: dict[Node, float] = {}
        for (value, index) in direct:
            if isinstance(value, Node):
                kept[value] = kept.get(value, 0.0) + element_types(value.type)[index].nbytes
        self.blocks = blocks_of(self.graph, self.users, kept, self._maker)
        self.switches = {block.cell: model.add(Variable((np.arange(2),))) for block in self.blocks}
        place = {node: i for i, node in enumerate(self.graph.nodes)}
        self.early = {self.switches[block.cell]: min(place[node] for node in block.again) for block in self.blocks}
        self._inside = {node: block for block in self.blocks for node in block.inside}
        for block in self.blocks:
            self._again(block, direct)
        for source, readings in direct.items():
            self._keep(source, readings)

    @property
    def rows(self) -> tuple[list[Factor], list[Factor]]:
        """The factors of the two points at which most is held."""
        return [*self.static, *self.kept], [*self.static, *self.gradients]

    def shares(self, prices: Sequence[float]) -> list[tuple[Factor, float]]:
        """Every factor with what a byte of it costs, by the price of a byte of either row."""
        begin, end = prices
        parts = ((self.static, begin + end), (self.kept, begin), (self.gradients, end))
        return [(factor, price) for factors, price in parts for factor in factors]

    def held(self, values: Sequence[int]) -> tuple[float, float]:
        """Bytes that a rank holds at the two points."""
        begin, end = (sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in row) for row in self.rows)
        return begin, end

    def peak(self, values: Sequence[int]) -> float:
        """Bytes that a rank holds at the peak of a step, as near as can be told without compiling it."""
        again = [block for block in self.blocks if values[self.switches[block.cell]]]
        moving = Footprint(self.model, values, again, self.gathered_again(values)).peak()
        always = sum(float(f.table[tuple(values[v] for v in f.variables)]) for f in self.static)
        return always + moving

    def recomputed(self, values: Sequence[int]) -> list[str]:
        """The cells that an assignment computes again."""
        return [cell for cell, variable in self.switches.items() if values[variable]]

    def gathered_again(self, values: Sequence[int]) -> list[Parameter]:
        """The parameters that an assignment gathers once more for gradients."""
        return [
            value for value, v in self.model.of.items()
            if isinstance(value, Parameter) and (again := self.model.variables[v].again) and again[values[v]]
        ]  # fmt: skip

    # Weights, states, gradients

    def _parameters(self) -> None:
        model, times = self.model, copies(self.model.search)
        for value, variable in model.of.items():
            if not isinstance(value, Parameter):
                continue
            numbers, type = model.variables[variable].outputs[0], value.tensor_type
            stays = times.get(value, 2) - 1
            held = lambda n=numbers, t=type, times=1: model.held(n, t) * times  # noqa: E731
            key = (numbers.tobytes(), type)
            self.static.append(model.made((variable,), ("stays", *key, stays), lambda h=held, s=stays: h(times=s)))
            if value in times:
                self.gradients.append(model.made((variable,), ("gradient", *key), held))

    # What gradients read

    def _maker(self, value: Value) -> Node | None:
        source = self.model.source(value)
        return source[0] if source is not None and isinstance(source[0], Node) else None

    def _direct_readings(self) -> dict[Source, list[_Reading]]:
        """How backward operators read tensors of the forward graph, and views of them."""
        found: dict[Source, list[_Reading]] = {}
        for node in self.graph.nodes:
            if node.phase != "backward" or "unused" in node.attrs:
                continue
            for value in node.inputs:
                source = self.model.source(value)
                if source is None or isinstance(value, Constant) or source[0] not in self.model.of:
                    continue
                forward, place = node.forward, -1
                if forward is not None and forward in self.model.of:
                    places = [i for i, each in enumerate(forward.inputs) if self.model.source(each) == source]
                    place = places[0] if places else -1
                self._note(found, source, forward, place)
        return found

    def _note(
        self, readings: dict[Source, list[_Reading]], source: Source, reader: Node | None, place: int,
        switch: int = ALWAYS,
    ) -> None:  # fmt: skip
        """Add a reading to those of a tensor. Those alike are one; one that two cells want is always there."""
        new = _Reading(source, ALWAYS, np.zeros(0, int), switch)
        if reader is not None and place >= 0:
            variable = self.model.of[reader]
            new = _Reading(source, variable, self.model.variables[variable].operands[place], switch)
        known = readings.setdefault(self._base(source), [])
        for i, other in enumerate(known):
            if self._alike(other, new):
                if other.switch not in (ALWAYS, switch):
                    known[i] = replace(other, switch=ALWAYS)
                return
        known.append(new)

    def _base(self, source: Source) -> Source:
        """What a tensor is a view of, or itself."""
        while isinstance(source[0], Node) and source[0].op.is_view:
            below = self.model.source(source[0].inputs[0])
            if below is None or below[0] not in self.model.of:
                break
            source = below
        return source

    def _alike(self, one: _Reading, other: _Reading) -> bool:
        if (one.variable == ALWAYS) != (other.variable == ALWAYS):
            return False
        return one.variable == ALWAYS or (
            np.array_equal(one.needs, other.needs) and np.array_equal(self._made(one.source), self._made(other.source))
        )

    def _made(self, source: Source) -> Numbers:
        return self.model.variables[self.model.of[source[0]]].outputs[source[1]]

    def _keep(self, base: Source, readings: Sequence[_Reading]) -> None:
        """The bytes of one tensor that gradients read, in all the layouts in which they do."""
        model, value = self.model, base[0]
        block = self._inside.get(value) if isinstance(value, Node) else None
        unless = self.switches[block.cell] if block is not None else ALWAYS
        for reading in readings:
            if reading.variable != ALWAYS:
                self._keep_copy(reading, isinstance(value, Parameter) or len(readings) > 1, unless)
        if isinstance(value, Node) and (len(readings) > 1 or readings[0].variable == ALWAYS):
            switches = {reading.switch for reading in readings}
            only = next(iter(switches)) if len(switches) == 1 else ALWAYS
            outputs, type = self._made(base), element_types(value.type)[base[1]]
            key = ("made", outputs.tobytes(), type)
            self._switched((model.of[value],), key, lambda: model.held(outputs, type), unless, only)

    def _keep_copy(self, reading: _Reading, beside: bool, unless: int) -> None:
        """What an operator's gradient reads. beside: the tensor itself is there in any case, so that what lies as it
        does is no copy."""
        model, (value, index), needs = self.model, reading.source, reading.needs
        own, outputs, type = model.of[value], self._made(reading.source), element_types(value.type)[index]
        again = model.variables[own].again or (False,) * len(outputs)

        def made() -> Table:
            nbytes = model.held(needs, type)
            if not beside:
                return nbytes
            return nbytes[None, :] * (outputs[:, None] != needs[None, :]) * ~np.array(again)[:, None]

        key = ("kept", outputs.tobytes() if beside else b"", needs.tobytes(), type, beside, again)
        scope = (own, reading.variable) if beside else (reading.variable,)
        self._switched(scope, key, made, unless, reading.switch)
        if any(again):
            model.subject = value
            key = ("again", outputs.tobytes(), needs.tobytes(), type.nbytes, again)
            model.factor((own, reading.variable), key, lambda: (
                model.sent("there", outputs, needs, type, model.latency) * np.array(again)[:, None]
            ))  # fmt: skip

    def _switched(self, scope: tuple[int, ...], key: Any, made: Any, unless: int, only: int) -> None:
        """A factor of what is kept: unless a cell is computed again, and only where another one is."""
        factor = self.model.made
        if unless != ALWAYS:
            self.kept.append(factor((*scope, unless), (*key, "unless"), lambda: made()[..., None] * [1.0, 0.0]))
        elif only != ALWAYS:
            self.kept.append(factor((*scope, only), (*key, "only"), lambda: made()[..., None] * [0.0, 1.0]))
        else:
            self.kept.append(factor(scope, key, made))

    # What is computed again

    def _again(self, block: Block, direct: dict[Source, list[_Reading]]) -> None:
        """What computing a cell again costs; what enters it is then read by gradients."""
        model, switch = self.model, self.switches[block.cell]
        for node in block.again:
            if node not in model.of:
                continue
            self._compute_again(node, switch)
            for place, value in enumerate(node.inputs):
                source = model.source(value)
                if source is None or source[0] not in model.of:
                    continue
                if source[0] in block.inside:
                    self._send_again(source, node, place, switch)
                else:
                    self._note(direct, source, node, place, switch)

    def _compute_again(self, node: Node, switch: int) -> None:
        model, op = self.model, cast(Op, node.op)
        variable, types = model.variables[model.of[node]], operand_types(node)
        rule = model.search.rules[node]
        assert rule is not None
        inside = type(op).moved_bytes is not Op.moved_bytes
        operations = op.operations(types)
        special, usual = self._compute
        rate = special.get(types[0].dtype.itemsize, usual) if operations else 0
        key = ("again", op if inside else None, operations, rate, types, node.type, id(variable))

        def made() -> Table:
            share = np.array([choice.work for choice in variable.choices]) / math.prod(rule.sizes)
            found = share * operations / OPERATIONS * rate
            found = found + model.touch * np.array([touched(node, choice) for choice in variable.choices])
            if inside:
                found = found + [op.moved_bytes(types, choice.inputs) for choice in variable.choices]
            return found[:, None] * [0.0, 1.0]

        model.subject = node
        model.factor((model.of[node], switch), key, made)

    def _send_again(self, source: Source, reader: Node, place: int, switch: int) -> None:
        """What is brought to a reader inside of a cell is brought there once more."""
        model, (value, index) = self.model, source
        type = element_types(value.type)[index]
        own, variable = model.of[value], model.of[reader]
        outputs, needs = model.variables[own].outputs[index], model.variables[variable].operands[place]
        key = ("again", outputs.tobytes(), needs.tobytes(), len(type.shape), type.nbytes)
        made = lambda: model.sent("there", outputs, needs, type, model.latency)[..., None] * [0.0, 1.0]  # noqa: E731
        model.subject = value
        model.factor((own, variable, switch), key, made)

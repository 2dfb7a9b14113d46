"""Model of a rank's memory, as tables next to the cost tables of a search, and of the decisions that lower it.

The peak is either during the gradients, with every tensor that later gradients read, or at the start of the updates,
with all gradients. Weights and states are always live. Each moment is a row of factors, whose sum must be within the
limit. The first two rows are the start of the gradients and the start of the updates; the moments of found plans' peaks
are added later.

The decisions that lower the peak are variables like layouts: parameters that are sharded further than their readers
need (as with optimizer parallel), gathered once and saved or gathered again for gradients; and cells that are
recomputed. Their costs are factors of the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.graph import OFFLOAD, Constant, Node, Parameter, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from mspc.passes.lib.choices import OPERATIONS, ShardingChoice, Terms, exchanges
from mspc.passes.lib.recomputation import RecomputableCell, blocks_of
from mspc.search.model.footprint import Footprint, StepLayouts, gradient_bytes, summand
from mspc.search.model.model import (
    CostModel,
    Numbers,
    Source,
    UnevenCosts,
    Variable,
    accessed_bytes,
    tensors_per_parameter,
)
from mspc.search.solver.elimination import Factor, Sums, Table


def cell_inputs(model: CostModel, block: RecomputableCell) -> Iterator[tuple[Source, Node, int]]:
    """Yield (source, reader, operand index) of the tensors that a cell's recomputed operators read from outside."""
    for node in block.again:
        if node not in model.of:
            continue
        for place, value in enumerate(node.inputs):
            source = model.source(value)
            if source is not None and source[0] in model.of:
                yield source, node, place


class RecomputeCosts:
    """Cost factors of recomputing cells."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        terms = Terms.of(model.search.graph.attrs)
        self._compute: tuple[dict[int, int], int] = {2: terms.compute_half}, terms.compute
        self._uneven = UnevenCosts(terms, model.hosts)

    def add(self, block: RecomputableCell, switch: int) -> None:
        """Add the costs of recomputing a cell. switch: the variable that decides on it."""
        for node in block.again:
            if node in self.model.of:
                self._add_compute(node, switch)
        for source, node, place in cell_inputs(self.model, block):
            if source[0] in block.inside:
                self._add_redistribution(source, node, place, switch)

    def _add_compute(self, node: Node, switch: int) -> None:
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
            found = found + model.touch * np.array([accessed_bytes(node, choice) for choice in variable.choices])
            if inside:
                found = found + [self._inside(op, types, choice) for choice in variable.choices]
            return found[:, None] * [0.0, 1.0]

        model.subject = node
        model.factor((model.of[node], switch), key, made)

    def _inside(self, op: Op, types: Sequence[TensorType], choice: ShardingChoice) -> float:
        """Return the bytes sent inside an operator, and the cost of its uneven work."""
        form = op.in_form(choice.inputs)
        sent = form.moved_bytes(types, choice.inputs)
        return sent + self._uneven.of(form, types, choice.inputs, sent)

    def _add_redistribution(self, source: Source, reader: Node, place: int, switch: int) -> None:
        """Add the cost of redistributing an operand a second time inside a recomputed cell."""
        model, (value, index) = self.model, source
        type = element_types(value.type)[index]
        own, variable = model.of[value], model.of[reader]
        outputs, needs = model.variables[own].outputs[index], model.variables[variable].operands[place]
        key = ("again", outputs.tobytes(), needs.tobytes(), len(type.shape), type.nbytes)

        def made() -> Table:
            return model.sent("there", outputs, needs, type, model.latency)[..., None] * [0.0, 1.0]

        model.subject = value
        model.factor((own, variable, switch), key, made)


BEGIN, END = 0, 1
"""Rows of memory: the start of gradients, and the start of updates."""
ALWAYS = -1
"""Value of `switch` for reads that do not depend on the recomputation of a cell."""


@dataclass(frozen=True, eq=False)
class _GradientReading:
    """Read of a forward tensor by gradients. source: the tensor, or a view of it. variable: the operator that has it as
    an operand in that layout; ALWAYS if it is read as it was made. needs: the layouts read. switch: the variable of the
    cell if only its recomputation reads the tensor."""

    source: Source
    variable: int
    needs: Numbers
    switch: int = ALWAYS


class MemoryModel:
    """Memory of a model's assignments.

    static: factors of the tensors that are always live. moments: factors of the tensors that are live in addition at
    each moment, `BEGIN` and `END` first. switches: the variable of every cell that may be recomputed; its choices are
    to save the results and to recompute them. early: for these variables, the position in the step of the cell's
    operators.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.graph = model.search.graph
        self.users = model.search.traffic.users
        self.static: list[Factor] = []
        self.moments: list[list[Factor]] = [[], []]
        self._known: set[Any] = set()
        self._facts = StepLayouts(model)
        self._parameters()
        self._always = Sums(self.static)
        direct = self._direct_readings(0)
        held: dict[Node, float] = {}
        for (value, index) in direct:
            if isinstance(value, Node):
                held[value] = held.get(value, 0.0) + element_types(value.type)[index].nbytes
        self.blocks = blocks_of(self.graph, self.users, held, self._maker)
        self.switches = {block.cell: model.add(Variable((np.arange(2),))) for block in self.blocks}
        place = {node: i for i, node in enumerate(self.graph.nodes)}
        self.early = {self.switches[block.cell]: min(place[node] for node in block.again) for block in self.blocks}
        self._inside = {node: block for block in self.blocks for node in block.inside}
        costs = RecomputeCosts(model)
        for block in self.blocks:
            costs.add(block, self.switches[block.cell])
            self._add_recompute_reads(block, direct)
        for source, readings in direct.items():
            self._add_saved(self.moments[BEGIN], source, readings, frozenset())
            for reading in readings:
                self._add_gather(reading)

    def with_first_moments(self) -> MemoryModel:
        """Return the same model with only the first two moments."""
        other = copy(self)
        other.moments, other._known = self.moments[:END + 1], set()
        return other

    def add_moment(self, values: Sequence[int], at: int | None = None) -> bool:
        """Add the moment of an assignment's peak, or replace moment `at` by it. Return False if the peak is not among
        the gradients, or its moment exists already."""
        moment = self._footprint(values).moment()
        key = (moment.node, moment.gradients)
        if moment.node.phase != "backward" or key in self._known:
            return False
        self._known.add(key)
        place = {node: i for i, node in enumerate(self.graph.nodes)}
        now = place[moment.node]
        ran: dict[RecomputableCell, list[int]] = {}
        for node in self.graph.nodes:
            if node.phase == "backward" and node.forward in self._inside:
                ran.setdefault(self._inside[node.forward], []).append(place[node])
        direct = self._direct_readings(now)
        for block in self.blocks:
            if now < min(ran.get(block, [0])):
                self._add_recompute_reads(block, direct)
        there = frozenset(block for block, when in ran.items() if min(when) <= now)
        row = [factor for made in moment.gradients for factor in self._moving(made)]
        for source, readings in direct.items():
            self._add_saved(row, source, readings, there)
        if at is None:
            self.moments.append(row)
        else:
            self.moments[at] = row
        return True

    def _moving(self, made: Node | Parameter) -> Iterator[Factor]:
        """Yield the bytes of a gradient: a parameter's in the stored layout, another value's in the layout of its
        operand."""
        model = self.model
        if isinstance(made, Parameter):
            numbers, type = model.variables[model.of[made]].outputs[0], made.tensor_type
            key = ("gradient", numbers.tobytes(), type)
            yield model.shared_factor((model.of[made],), key, lambda: model.slice_bytes(numbers, type))
            return
        while made.forward is None and (first := summand(made)) is not None:
            made = first
        forward = made.forward if made.forward in model.of else None
        if forward is None or not model.variables[model.of[forward]].choices:
            return
        variable = model.variables[model.of[forward]]
        key = ("moves", id(variable), made.type, made.forward_input, tuple(value.type for value in forward.inputs))
        yield model.shared_factor((model.of[forward],), key, lambda: np.array([
            gradient_bytes(made, forward, choice) for choice in variable.choices
        ]))  # fmt: skip

    @property
    def rows(self) -> list[list[Factor]]:
        """Factors of the tensors that are live at every moment."""
        return [[*self.static, *moment] for moment in self.moments]

    def shares(self, row: int, price: float) -> list[tuple[Factor, float]]:
        """Return every factor with the cost of one of its bytes, given the price of a byte of one row."""
        parts = [(self.static, price), *((moment, price * (i == row)) for i, moment in enumerate(self.moments))]
        return [(factor, each) for factors, each in parts for factor in factors]

    def live_bytes(self, values: Sequence[int]) -> tuple[float, ...]:
        """Return a rank's live bytes at every moment."""
        return tuple(Sums(row).total(values) for row in self.rows)

    def peak(self, values: Sequence[int]) -> float:
        """Return a rank's live bytes at the peak of a step, estimated without compiling."""
        return self._always.total(values) + self._footprint(values).peak()

    def _footprint(self, values: Sequence[int]) -> Footprint:
        again = [block for block in self.blocks if values[self.switches[block.cell]]]
        return Footprint(self._facts, values, again, self.regathered_parameters(values))

    def recomputed(self, values: Sequence[int]) -> list[str]:
        """Return the cells that an assignment recomputes."""
        return [cell for cell, variable in self.switches.items() if values[variable]]

    def regathered_parameters(self, values: Sequence[int]) -> list[Parameter]:
        """Return the parameters that an assignment gathers again for gradients."""
        return [
            value for value, v in self.model.of.items()
            if isinstance(value, Parameter) and (again := self.model.variables[v].again) and again[values[v]]
        ]  # fmt: skip

    # Weights, states, gradients

    def _parameters(self) -> None:
        model, times = self.model, tensors_per_parameter(self.model.search)
        for value, variable in model.of.items():
            if not isinstance(value, Parameter):
                continue
            numbers, type = model.variables[variable].outputs[0], value.tensor_type
            count = model.turns.made(value)
            stays = (times.get(value, 2) - 1) * count * (OFFLOAD not in value.attrs)
            held = lambda n=numbers, t=type, times=1: model.slice_bytes(n, t) * times  # noqa: E731  # defaults bind this iteration's values
            key = (numbers.tobytes(), type)
            self.static.append(
                model.shared_factor((variable,), ("stays", *key, stays), lambda h=held, s=stays: h(times=s))
            )
            if value in times:
                found = model.shared_factor((variable,), ("gradient", *key, count), lambda h=held, c=count: h(times=c))
                self.moments[END].append(found)

    # Tensors read by gradients

    def _maker(self, value: Value) -> Node | None:
        source = self.model.source(value)
        return source[0] if source is not None and isinstance(source[0], Node) else None

    def _direct_readings(self, begin: int) -> dict[Source, list[_GradientReading]]:
        """Return the reads of forward tensors, and of views of them, by the backward operators from position `begin`
        on."""
        found: dict[Source, list[_GradientReading]] = {}
        for node in self.graph.nodes[begin:]:
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
        self, readings: dict[Source, list[_GradientReading]], source: Source, reader: Node | None, place: int,
        switch: int = ALWAYS,
    ) -> None:  # fmt: skip
        """Add a read of a tensor. Equal reads are merged; a tensor that two recomputed cells read is always live."""
        new = _GradientReading(source, ALWAYS, np.zeros(0, int), switch)
        if reader is not None and place >= 0:
            variable = self.model.of[reader]
            new = _GradientReading(source, variable, self.model.variables[variable].operands[place], switch)
        known = readings.setdefault(self._base(source), [])
        for i, other in enumerate(known):
            if self._have_equal_layouts(other, new):
                if other.switch not in (ALWAYS, switch):
                    known[i] = replace(other, switch=ALWAYS)
                return
        known.append(new)

    def _base(self, source: Source) -> Source:
        """Return the tensor that a tensor is a view of, or the tensor itself."""
        while isinstance(source[0], Node) and source[0].op.is_view:
            below = self.model.source(source[0].inputs[0])
            if below is None or below[0] not in self.model.of:
                break
            source = below
        return source

    def _have_equal_layouts(self, one: _GradientReading, other: _GradientReading) -> bool:
        if (one.variable == ALWAYS) != (other.variable == ALWAYS):
            return False
        return one.variable == ALWAYS or (
            np.array_equal(one.needs, other.needs) and np.array_equal(self._made(one.source), self._made(other.source))
        )

    def _made(self, source: Source) -> Numbers:
        return self.model.variables[self.model.of[source[0]]].outputs[source[1]]

    def _add_saved(
        self, row: list[Factor], base: Source, readings: Sequence[_GradientReading], there: Collection[RecomputableCell]
    ) -> None:  # fmt: skip
        """Add to a row the bytes of a tensor that gradients read, in all layouts that they read. there: cells whose
        results are live whether they are recomputed or not."""
        model, value = self.model, base[0]
        if isinstance(value, Node) and OFFLOAD in value.attrs:
            return  # it is on the host
        block = self._inside.get(value) if isinstance(value, Node) else None
        unless = self.switches[block.cell] if block is not None and block not in there else ALWAYS
        for reading in readings:
            if reading.variable != ALWAYS:
                self._add_saved_copy(row, reading, isinstance(value, Parameter) or len(readings) > 1, unless)
        if isinstance(value, Node) and (len(readings) > 1 or readings[0].variable == ALWAYS):
            switches = {reading.switch for reading in readings}
            only = next(iter(switches)) if len(switches) == 1 else ALWAYS
            outputs, type = self._made(base), element_types(value.type)[base[1]]
            count = model.turns.made(value)  # saved in every iteration
            key = ("made", outputs.tobytes(), type, count)
            made = lambda: count * model.slice_bytes(outputs, type)  # noqa: E731  # too long for the line below
            row.append(self._switched((model.of[value],), key, made, unless, only))

    def _add_saved_copy(self, row: list[Factor], reading: _GradientReading, is_stored: bool, unless: int) -> None:
        """Add the bytes of a tensor read by an operator's gradient. is_stored: the tensor itself is always live, so
        that a read in its own layout needs no copy."""
        model, (value, index), needs = self.model, reading.source, reading.needs
        own, outputs, type = model.of[value], self._made(reading.source), element_types(value.type)[index]
        again = model.variables[own].again or (False,) * len(outputs)

        def made() -> Table:
            nbytes = model.slice_bytes(needs, type)
            if not is_stored:
                return nbytes
            return nbytes[None, :] * (outputs[:, None] != needs[None, :]) * ~np.array(again)[:, None]

        key = ("kept", outputs.tobytes() if is_stored else b"", needs.tobytes(), type, is_stored, again)
        scope = (own, reading.variable) if is_stored else (reading.variable,)
        row.append(self._switched(scope, key, made, unless, reading.switch))

    def _add_gather(self, reading: _GradientReading) -> None:
        """Add the cost of gathering a parameter again for its gradients."""
        model, (value, index), needs = self.model, reading.source, reading.needs
        again = model.variables[model.of[value]].again
        if reading.variable == ALWAYS or not any(again):
            return
        outputs, type = self._made(reading.source), element_types(value.type)[index]
        model.subject = value
        key = ("again", outputs.tobytes(), needs.tobytes(), type.nbytes, again)
        model.factor((model.of[value], reading.variable), key, lambda: (
            model.sent("there", outputs, needs, type, model.latency) * np.array(again)[:, None]
        ))  # fmt: skip

    def _switched(self, scope: tuple[int, ...], key: Any, made: Any, unless: int, only: int) -> Factor:
        """Return a factor of saved bytes that counts unless cell `unless` is recomputed, and only if cell `only` is."""
        factor = self.model.shared_factor
        if unless != ALWAYS:
            return factor((*scope, unless), (*key, "unless"), lambda: made()[..., None] * [1.0, 0.0])
        if only != ALWAYS:
            return factor((*scope, only), (*key, "only"), lambda: made()[..., None] * [0.0, 1.0])
        return factor(scope, key, made)

    def _add_recompute_reads(self, block: RecomputableCell, readings: dict[Source, list[_GradientReading]]) -> None:
        """Add the reads of a cell's inputs by its recomputation."""
        for source, node, place in cell_inputs(self.model, block):
            if source[0] not in block.inside:
                self._note(readings, source, node, place, self.switches[block.cell])

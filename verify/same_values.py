"""Compares one device with many ranks: which values of which step are the same, on every rank that holds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np

from mspc.ir.graph import PADDING, Graph, Node, Parameter, Value, depending
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.ops.control.regions import Scan, body_of
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import AddN, Select
from mspc.runtime.observe import join
from mspc.verify.difference import ComparedValue, Noise, coarsest, compare
from mspc.verify.many_ranks import GATHERED

# In stages operators are matched within micro-batches, too. One device runs a loop over them forward, and another
# backward from the last on; the ranks add gradients up in the order of the micro-batches. So values that depend on sums
# of the second loop agree only after all micro-batches.


class Matched(NamedTuple):
    """An operator of one device, and of the ranks.

    key, other_key: of its value, of one device and of the ranks. micro_batch: its number, None outside of these. term:
    of a sum over micro-batches the operator whose values are added up.
    """

    node: Node
    other: Node
    key: Any
    other_key: Any
    micro_batch: int | None = None
    term: Node | None = None


class FirstOperator(NamedTuple):
    """The first operator whose value differs, or whose sum over micro-batches does (`is_sum`). micro_batch, stage: None
    if there are none."""

    node: Node
    micro_batch: int | None = None
    stage: int | None = None
    is_sum: bool = False

    @property
    def place(self) -> str:
        """` in micro-batch 2 on stage 1`, as far as there are any."""
        part = "" if self.micro_batch is None else f" in micro-batch {self.micro_batch}"
        part = ", added up over micro-batches," if self.is_sum else part
        return part if self.stage is None else f"{part} on stage {self.stage}"


def number_operators(graph: Graph, mark: str) -> None:
    """Number the operators, those that work on micro-batches too, but not those that pad dimensions or mask padding:
    one device has none of these."""
    nodes = list(_all_nodes(graph))
    summed = {node.forward for node in nodes if isinstance(node.op, AddN)}
    for number, node in enumerate(node for node in nodes if not _is_of_padding(node, summed)):
        node.attrs[mark] = number


def _is_of_padding(node: Node, summed: Collection[Node | None]) -> bool:
    """Return whether one device has no such operator. Gradients of the readers of a padded copy are added up as those
    of the value itself, unless that has further readers."""
    forward = node.forward
    if PADDING in node.attrs or forward is None or PADDING not in forward.attrs:
        return PADDING in node.attrs
    while isinstance(forward, Node) and PADDING in forward.attrs:
        forward = cast(Any, forward.inputs[isinstance(forward.op, Select)])
    return not isinstance(node.op, AddN) or forward in summed


def matched(one: Graph, many: Graph, mark: str) -> Iterator[Matched]:
    """Yield the operators that both have. mark: attribute that numbers both alike. Masks of padding may change which
    views a loop makes again for gradients: from there on numbers differ, and results and parameters alone are
    compared."""
    for each in _matched(one, many, mark):
        if many.attrs.get("pad_uneven") and each.node.op.name != each.other.op.name:
            return
        yield each


def _matched(one: Graph, many: Graph, mark: str) -> Iterator[Matched]:
    others = _numbered(many, mark)
    for node in one.nodes:
        if isinstance(node.op, Scan) and node.op.micro_batches:
            yield from _in_micro_batches(node, node.op, others, mark)
            continue
        inner = _total(node)
        if inner is not None and inner.attrs.get(mark) in others:
            number = inner.attrs[mark]
            source = node.inputs[0].op  # type: ignore[union-attr]  # a loop
            keys = (number, 0 if source.reverse else source.turns - 1), (number, source.turns - 1)
            yield Matched(node, others[number], *keys, term=_term(inner))
        elif node.attrs.get(mark) in others:
            number = node.attrs[mark]
            yield Matched(node, others[number], number, number, term=None if inner is None else _term(inner))


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        if isinstance(node.op, Scan) and node.op.micro_batches:
            yield from body_of(node).nodes


def _numbered(graph: Graph, mark: str) -> dict[Any, Node]:
    """Return operators by number. Parts of a sum that stages take apart share one number: the part with the parameter's
    gradient is taken, if there is one."""
    found: dict[Any, list[Node]] = {}
    for node in _all_nodes(graph):
        if mark in node.attrs:
            found.setdefault(node.attrs[mark], []).append(node)
    chosen: dict[Any, Node] = {}
    for number, nodes in found.items():
        those = nodes if len(nodes) == 1 else [node for node in nodes if node.attrs.get("gradient_for")]
        if len(those) == 1:
            chosen[number] = those[0]
    return chosen


def _in_micro_batches(loop: Node, op: Scan, others: dict[Any, Node], mark: str) -> Iterator[Matched]:
    body = body_of(loop)
    sums = depending(body.nodes, body.parameters[: op.carried]) if op.reverse else set[Value]()
    nodes = [node for node in body.nodes if node not in sums and node.attrs.get(mark) in others]
    for turn in range(op.turns)[:: -1 if op.reverse else 1]:
        for node in nodes:
            key = node.attrs[mark], turn
            yield Matched(node, others[node.attrs[mark]], key, key, turn)


def _total(node: Node) -> Node | None:
    """Return the operator in a loop over micro-batches whose last value a node takes."""
    source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
    if not (isinstance(source, Node) and isinstance(source.op, Scan) and source.op.micro_batches):
        return None
    assert isinstance(node.op, TupleGetItem)
    result = body_of(source).results[node.op.index] if node.op.index < source.op.carried else None
    return result if isinstance(result, Node) else None


def _term(total: Node) -> Node:
    """Return the term that is added to a total: the last operator that it reads, and is no sum itself."""
    while isinstance(total.op, AddN):
        read = [value for value in total.inputs if isinstance(value, Node)]
        if not read:
            break
        total = read[-1]
    return total


Array = Any
Values = dict[Any, Array]


class _Pair(NamedTuple):
    """Values to compare. place: of one device. mine: the ranks', or None if their slices do not fit together. stage:
    whose ranks these are."""

    place: int
    wanted: Array
    mine: Array | None
    stage: int | None = None


@dataclass(frozen=True)
class Comparison:
    """The values of one device, and how the ranks hold them.

    one, many: the graph of one device and that of all ranks before slicing. ranks: of one stage. weights: first values.
    expected, noise: for every step and place, see `OneDevice`; there is a place for every rank if each has rows of its
    own (`own_rows`). mark: attribute that numbers the operators of both graphs alike. stages: how many there are; each
    has that many ranks.
    """

    one: Graph
    many: Graph
    ranks: int
    weights: dict[str, Array]
    expected: Sequence[Sequence[Values]]
    noise: Callable[[], Callable[[int, int, Any], Noise]]
    own_rows: bool
    mark: str
    stages: int = 1

    def results(self, found: Sequence[Sequence[Values]]) -> list[ComparedValue]:
        """Return a row for every result, of the step in which the ranks are furthest off."""
        return [self._worst("output", str(i), ("result", i), value, found) for i, value in enumerate(self.many.results)]

    def parameters(self, found: Sequence[Sequence[Values]]) -> list[ComparedValue]:
        """Return the rows for every parameter. If sums over ranks with rows of their own are those of no single device,
        only parameters that differ have rows."""
        rows: list[ComparedValue] = []
        for parameter in self.one.parameters:
            if parameter.kind == "parameter":
                mine = self.many.parameter(parameter.name)
                rows.append(self._worst("parameter", parameter.name, parameter.name, mine, found))
        hidden = self.own_rows and not self.many.attrs.get("gradients_mean")
        return [row for row in rows if not (hidden and row.same)]

    def gathered(self, found: Sequence[Sequence[Values]]) -> list[ComparedValue]:
        """Return rows of parameters that are wrong only after their slices have been gathered, on some rank."""
        rows: list[ComparedValue] = []
        last = len(found) - 1
        for parameter in self.one.parameters if not self.own_rows else ():
            key, name = GATHERED + parameter.name, parameter.name
            noise, wanted = partial(self._noise, last, 0, name), self.expected[last][0][name]
            for whole in [values[key] for values in found[-1] if key in values]:
                rows.append(compare("gathered parameter", name, wanted, whole, self.least, noise))
        return [row for row in rows if not row.same]

    def operators(self, found: Sequence[Values], step: int) -> tuple[list[ComparedValue], FirstOperator | None]:
        """Return rows of parameters' gradients, and the first operator whose value differs: found is one step of all
        ranks.

        If ranks have rows of their own, the row is the operator's.
        """
        rows: list[ComparedValue] = []
        first: FirstOperator | None = None
        for each in matched(self.one, self.many, self.mark):
            node = each.node
            if each.key not in self.expected[step][0]:
                continue
            row = self._row("operator", node.label, each.key, each.other, found, step, each.other_key)
            if row is None:  # slices of it are needed nowhere
                continue
            if not row.same and first is None:
                first = FirstOperator(each.term or node, each.micro_batch, row.stage, each.term is not None)
                rows += [row] if self.own_rows else []
            if not self.own_rows:
                rows += [replace(row, kind="gradient", name=name) for name in gradient_names(node)]
        return rows, first

    @cached_property
    def least(self) -> float:
        """The tolerance that all values have at least."""
        return coarsest(self.one)

    def _worst(self, kind: str, name: str, key: Any, value: Value, found: Sequence[Sequence[Values]]) -> ComparedValue:
        rows = [self._row(kind, name, key, value, ranks, step) for step, ranks in enumerate(found)]
        return max((row for row in rows if row is not None), key=ComparedValue.badness)

    def _noise(self, step: int, place: int, key: Any) -> Noise:
        return self.noise()(step, place, key)

    def _row(
        self, kind: str, name: str, key: Any, value: Value, found: Sequence[Values], step: int, other_key: Any = None
    ) -> ComparedValue | None:
        """Return the row of one value in one step, or None if no rank has all of it. other_key: the ranks' key, if it
        is another."""
        before = self.weights.get(key) if kind == "parameter" else None
        rows: list[ComparedValue] = []
        pairs = self._pairs(key, value, found, step, key if other_key is None else other_key)
        for place, wanted, mine, stage in pairs:
            noise = partial(self._noise, step, place, key)
            row = compare(kind, name, wanted, mine, self.least, noise, before)
            rows.append(row if stage is None else replace(row, stage=stage))
        worst = max(rows, key=ComparedValue.badness, default=None)
        if worst is not None and worst.same and len({pair.stage for pair in pairs}) > 1:
            return replace(worst, stage=None)
        return worst

    def _pairs(self, key: Any, value: Value, found: Sequence[Values], step: int, other_key: Any) -> list[_Pair]:
        """List the values that must be equal: the global value; and, if no sum is left to take, the value with each
        rank's own slice if that differs."""
        if self.own_rows:
            both = enumerate(zip(self.expected[step], found, strict=True))
            return [_Pair(rank, one[key], mine[key]) for rank, (one, mine) in both if key in one and key in mine]
        wanted = self.expected[step][0][key]
        pairs: list[_Pair] = []
        for stage in range(self.stages):
            ranks = found[stage * self.ranks : (stage + 1) * self.ranks]
            pairs += self._pairs_of(wanted, value, ranks, other_key, stage if self.stages > 1 else None)
        if not pairs and isinstance(value, Parameter) and self.stages > 1:  # no stage reads it, so that it stays
            return [_Pair(0, wanted, self.weights[value.name])]
        return pairs

    def _pairs_of(
        self, wanted: Array, value: Value, found: Sequence[Values], key: Any, stage: int | None
    ) -> list[_Pair]:
        layout = value.layout if isinstance(value.layout, Layout) else Layout.replicated(self.ranks, len(value.shape))
        try:
            joined = join(found, key, layout)
        except KeyError:
            return []
        except ValueError:
            return [_Pair(0, wanted, None, stage)]
        pads = self.many.attrs.get("pad_uneven") and joined.ndim == wanted.ndim
        is_padded = pads and all(n >= m for n, m in zip(joined.shape, wanted.shape, strict=True))
        inside = tuple(map(slice, wanted.shape)) if is_padded else ()
        if inside and isinstance(value, Parameter) and np.isfinite(wanted).all():
            if np.count_nonzero(joined) != np.count_nonzero(joined[inside]):
                return [_Pair(0, wanted, None, stage)]  # an update changed padding
        pairs = [_Pair(0, wanted, joined[inside], stage)]
        if layout.is_partial or joined[inside].shape != wanted.shape:
            return pairs
        for rank, values in enumerate(found):
            slices = layout.slices_for(rank, joined.shape)
            if key in values and not np.array_equal(values[key], joined[slices], equal_nan=joined.dtype.kind == "f"):
                other = np.array(joined)
                other[slices] = values[key]
                pairs.append(_Pair(0, wanted, other[inside], stage))
        return pairs


MARK = "verify"
"""The attribute that numbers operators before they are sharded, so that values of programs can be matched."""

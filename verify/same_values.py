"""Compares one device with many ranks: which values of which step are the same, on every rank that holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.graph import Graph, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.families import gradient_names
from mspc.runtime.observe import join
from mspc.verify.compared_operators import FirstOperator, matched
from mspc.verify.difference import ComparedValue, Noise, coarsest, compare
from mspc.verify.many_ranks import GATHERED

Array = Any
Values = dict[Any, Array]


class _Pair(NamedTuple):
    """place: of one device. wanted: what it has. mine: what ranks have, None where their slices do not fit together.
    stage: whose ranks these are."""

    place: int
    wanted: Array
    mine: Array | None
    stage: int | None = None


@dataclass(frozen=True)
class Comparison:
    """What one device computes, and how the ranks hold it.

    one, many: the graph of one device and that of all ranks before slicing. ranks: of one stage. weights: first values.
    expected, noise: for every step and place, see `OneDevice`, the noise where it is needed; there is a place for every
    rank where each has rows of its own (`own_rows`). mark: attribute that numbers the operators of both graphs alike.
    stages: how many there are; of each these are all ranks.
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
        """A row for every result, of the step in which the ranks are furthest off."""
        return [
            self._worst("output", str(i), ("result", i), value, found) for i, value in enumerate(self.many.results)
        ]

    def parameters(self, found: Sequence[Sequence[Values]]) -> list[ComparedValue]:
        """The same for every parameter. Sums over ranks with rows of their own are those of no single device, so their
        parameters are rows where they differ alone."""
        rows: list[ComparedValue] = []
        for parameter in self.one.parameters:
            if parameter.kind == "parameter":
                mine = self.many.parameter(parameter.name)
                rows.append(self._worst("parameter", parameter.name, parameter.name, mine, found))
        hidden = self.own_rows and not self.many.attrs.get("gradients_mean")
        return [row for row in rows if not (hidden and row.same)]

    def gathered(self, found: Sequence[Sequence[Values]]) -> list[ComparedValue]:
        """Rows of parameters that are wrong only after their slices have been gathered, on some rank."""
        rows: list[ComparedValue] = []
        last = len(found) - 1
        for parameter in self.one.parameters if not self.own_rows else ():
            key, name = GATHERED + parameter.name, parameter.name
            for whole in [values[key] for values in found[-1] if key in values]:
                row = compare("gathered parameter", name, self.expected[last][0][name], whole, self.least)
                if not row.same:
                    noise = self.noise()(last, 0, name)
                    rows.append(compare(row.kind, name, self.expected[last][0][name], whole, self.least, noise))
        return [row for row in rows if not row.same]

    def operators(self, found: Sequence[Values], step: int) -> tuple[list[ComparedValue], FirstOperator | None]:
        """Rows of parameters' gradients, and the first operator whose value differs: found is one step of all ranks.

        Where ranks have rows of their own, the row is the operator's.
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
        return max((r for r in rows if r is not None), key=lambda r: (not r.same, r.excused, r.difference))

    def _row(
        self, kind: str, name: str, key: Any, value: Value, found: Sequence[Values], step: int, other_key: Any = None
    ) -> ComparedValue | None:
        """The row of one value in one step; None where no rank has all of it. other_key: that of the ranks' values,
        where it is another."""
        before = self.weights.get(key) if kind == "parameter" else None
        rows: list[ComparedValue] = []
        pairs = self._pairs(key, value, found, step, key if other_key is None else other_key)
        for place, wanted, mine, stage in pairs:
            row = compare(kind, name, wanted, mine, self.least, None, before)
            if not row.same and np.isfinite(row.difference):
                row = compare(kind, name, wanted, mine, self.least, self.noise()(step, place, key), before)
            rows.append(row if stage is None else replace(row, stage=stage))
        worst = max(rows, key=lambda r: (not r.same, r.excused, r.difference), default=None)
        if worst is not None and worst.same and len({pair.stage for pair in pairs}) > 1:
            return replace(worst, stage=None)
        return worst

    def _pairs(self, key: Any, value: Value, found: Sequence[Values], step: int, other_key: Any) -> list[_Pair]:
        """What has to be the same: the global value; and where no sum is left to take, it with the slice of every rank
        whose own is another."""
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
        pairs = [_Pair(0, wanted, joined, stage)]
        if layout.is_partial or joined.shape != wanted.shape:
            return pairs
        for rank, values in enumerate(found):
            slices = layout.slices_for(rank, wanted.shape)
            if key in values and not np.array_equal(values[key], joined[slices], equal_nan=joined.dtype.kind == "f"):
                other = np.array(joined)
                other[slices] = values[key]
                pairs.append(_Pair(0, wanted, other, stage))
        return pairs

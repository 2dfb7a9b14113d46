"""Every operator's samples with numbers that sharding gets wrong first: NaN, infinities, ties, zeros of both signs,
places that there are not. Ranks together have what one device has, and refuse what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.types import TensorType
from mspc.ops.op import Op
from tests.grouped import grouped
from tests.ops.ranks import on_ranks
from tests.ops.simulate import BACKEND, arrays_of, check_sharded, layouts_of, operator_of, spread, strategies, types_of
from tests.ops.test_ops import CASES
from tests.shares import is_taken

RANKS, STRATEGIES = 4, 3
REFUSED = (IndexError, ValueError, MspcError)
FLOATS = {
    "NaN": ([np.nan], 0.1),
    "infinities": ([np.inf, -np.inf], 0.15),
    "ties": ([-1.0, 0.0, 1.0], 1.0),
    "zeros": ([0.0, -0.0], 0.5),
}
"""By kind: numbers, and the share of the elements that they take."""
OTHERS = len(FLOATS) - 1
"""Kinds beside NaN, which alone shows most: it spreads to all that is computed of it."""

FINITE = ("CumulativeLogsumexpGrad", "LinearRecurrence", "LinearRecurrenceGrad")
"""Recurrences: an infinite coefficient makes infinities of one device NaN, as slices multiply coefficients first."""


def hard_inputs(name: str, index: int) -> Iterator[tuple[str, list[Any]]]:
    """(what is hard, operands) for a sample: in all floating-point operands and in each alone, and for operands that
    name places those that are counted from the end and those that there are not. Together the operands of an operator's
    first sample have all kinds, those of the others NaN and a share of the other kinds. Alone every operand has NaN and
    a share of the other kinds, which are others from operand to operand and from sample to sample. The others than the
    first have a half of the kinds of places, by turns."""
    op, spec = operator_of(name, index)
    types = types_of(spec)
    inputs = arrays_of(name, spec, types)
    random = np.random.default_rng([len(name), index])

    def changed(x: Any, values: Sequence[Any], share: float) -> Any:
        chosen = random.random(x.shape) < share
        if x.size and not chosen.any():
            chosen.flat[0] = True
        return np.where(chosen, random.choice(np.asarray(values, x.dtype), x.shape), x)

    floats = [i for i, t in enumerate(types) if t.dtype.is_float or t.dtype.is_complex]
    for number, (kind, (values, share)) in enumerate(FLOATS.items()):
        together = [floats] if floats and (not index or kind == "NaN" or is_taken(number + index, OTHERS)) else []
        alone = [[i] for place, i in enumerate(floats) if kind == "NaN" or is_taken(number + place + index, OTHERS)]
        for among in together + (alone if len(floats) > 1 else []):
            yield kind, [changed(x, values, share) if i in among else x for i, x in enumerate(inputs)]
    for i, limit in op.index_limits(*types).items():
        if types[i].dtype.kind != "i":
            continue
        for number, (kind, places, share) in enumerate((
            ("counted from the end", np.arange(-limit, 0), 0.5),
            ("one past the end", [limit], 0.0),
            ("far out", [3 * limit], 0.3),
            ("before the first", [-limit - 1], 0.3),
        )):
            if index and not is_taken(number + index, 2):
                continue
            yield kind, [changed(x, places, share) if k == i else x for k, x in enumerate(inputs)]


@grouped([case for place, case in enumerate(CASES) if is_taken(place, 2)])
def test_ranks_have_what_one_device_has(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec)
    for kind, inputs in hard_inputs(name, index):
        if name in FINITE and kind == "infinities":
            continue
        with np.errstate(all="ignore"):
            try:
                op.kernel(BACKEND)(*[np.array(x) for x in inputs])
            except REFUSED:
                assert accepted(op, types, inputs) == [], f"{op}: {kind}: one device refuses it"
            else:
                try:
                    check_sharded(op, inputs, types, RANKS, STRATEGIES)
                except AssertionError as error:
                    error.add_note(f"with {kind}")
                    raise


def accepted(op: Op, types: Sequence[TensorType], inputs: Sequence[Any]) -> list[Sequence[int]]:
    """Strategies under which no rank refuses the operands."""
    rule, out_types = op.parsed_rule(*types), element_types(op.infer(*types))
    taken: list[Sequence[int]] = []
    for cuts, backwards in spread(list(itertools.product(strategies(rule, RANKS), (False, True))), STRATEGIES):
        ins, outs = layouts_of(rule, cuts, RANKS, backwards)
        try:
            on_ranks(op, RANKS, types, ins, out_types, outs, inputs)
        except REFUSED:
            continue
        taken.append(cuts)
    return taken


def test_every_operand_has_every_kind_alone_in_some_sample() -> None:
    """In the samples of a product it is so of both operands, and in each NaN is alone in both. Both together have every
    kind in the first sample, and in one of the others."""
    seen, later = set[tuple[str, int]](), set[str]()
    for index in range(OTHERS + 1):
        spec = operator_of("MatMul", index)[1]
        usual = arrays_of("MatMul", spec, types_of(spec))
        changed = [
            (kind, [i for i, x in enumerate(inputs) if not np.array_equal(x, usual[i])])
            for kind, inputs in hard_inputs("MatMul", index)
        ]
        assert [changed.count(("NaN", [i])) for i in range(len(usual))] == [1, 1]
        together = {kind for kind, at in changed if len(at) == len(usual)}
        assert together == FLOATS.keys() if index == 0 else "NaN" in together
        later |= together if index else set()
        seen |= {(kind, at[0]) for kind, at in changed if len(at) == 1}
    assert seen == {(kind, i) for kind in FLOATS for i in (0, 1)}
    assert later == FLOATS.keys()


@pytest.mark.parametrize("name", ["TensorScatterAdd", "ScatterAdd", "GatherNd"])
def test_places_that_there_are_not_are_among_the_cases(name: str) -> None:
    kinds = {kind for kind, _ in hard_inputs(name, 0)}
    assert {"NaN", "counted from the end", "one past the end", "before the first"} <= kinds

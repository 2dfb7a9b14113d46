"""Tests generated from every operator's samples: types, gradients, linearity, every legal strategy."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from mspc.ops.bases import ArrayFunction, Elementwise
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, has_kernel, sample
from tests.graphs import BOOL, Builder, Graph, Parameter, TensorType, difference, dtype_of, parse, print_graph
from tests.grouped import MANY, grouped
from tests.ops.simulate import (
    BACKEND,
    arrays_of,
    check_gradients,
    check_sharded,
    operator_of,
    results_of,
    samples_of,
    spread,
    types_of,
    wants_gradient,
)
from tests.shares import is_taken

ELSEWHERE = (
    "collective.collectives", "collective.exchange", "collective.point_to_point", "collective.row_exchange",
    "control.custom", "control.regions", "fused.dropout_mask", "fused.edges", "fused.elementwise",
    "fused.grouped_rows", "fused.scans",
    "Depend", "Gradient", "MakeTuple", "StopGradient", "TupleGetItem", "TupleGetItems", "GroupedUpdate",
    "BatchStatistics", "JoinMovingStatistics", "MovingStatistics", "BatchNormApply", "BatchNormGradInput",
    "BatchNormGradSums", "ChannelMean", "ChannelStatistics", "ChannelVariance", "JoinStatistics",
)  # fmt: skip
"""Modules and operators that have tests of their own: they need other ranks, have no kernel, or are never sharded."""
CASES = list(samples_of(ELSEWHERE))
DIFFERENTIABLE = [(name, index) for name, index in CASES if wants_gradient(name, index)]
LINEAR = [(name, index) for name, index in CASES if operator_of(name, index)[0].linear_in or REGISTRY[name].additive]
SCALARS = [
    case for case in CASES if issubclass(cls := REGISTRY[case[0]], Elementwise | ArrayFunction)
    if getattr(cls, "broadcasts", True)
]  # fmt: skip
"""Samples of operators that work element by element, whose operands may all be without dimensions."""
RANKS = 8, 4
"""Numbers of ranks; of an operator's first sample strategies are tried on the larger one, of its second on the smaller
one."""


def test_every_operator_states_its_hooks() -> None:
    silent: list[str] = []
    for name, cls in sorted(REGISTRY.items()):
        module = cls.__module__.removeprefix("mspc.ops.")
        if not cls.__module__.startswith("mspc.ops.") or module in ELSEWHERE or name in ELSEWHERE:
            continue
        if not cls.__doc__ or cls.__doc__.startswith(f"{name}("):
            silent.append(f"{name}: no docstring")
        if not cls.samples:
            silent.append(f"{name}: no samples")
        if cls.rule is Op.rule:
            silent.append(f"{name}: no rule")
        if not has_kernel(cls):
            silent.append(f"{name}: no kernel")
        if cls.bprop is Op.bprop:
            silent.append(f"{name}: neither a gradient nor a reason why there is none")
        if isinstance(cls.bprop, NotDifferentiable) and not cls.bprop.reason:
            silent.append(f"{name}: no reason")
    assert silent == []


@grouped(CASES, MANY)
def test_infer_agrees_with_kernel(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    for floats in ("Float64", "Float32"):
        types = types_of(spec, floats)
        inferred = op.infer(*types)
        wanted = (inferred,) if isinstance(inferred, TensorType) else inferred.elements
        results = results_of(op, arrays_of(name, spec, types))
        assert [(r.shape, dtype_of(r.dtype)) for r in results] == [(t.shape, t.dtype) for t in wanted]
        inputs = arrays_of(name, spec, types)
        direct = op.run(BACKEND, *[np.array(x) for x in inputs])
        for one, other in zip(direct if isinstance(direct, tuple) else (direct,), results, strict=True):
            np.testing.assert_array_equal(one, other)


@grouped(SCALARS)
def test_operands_without_dimensions(name: str, index: int) -> None:
    """The one element is that of operands with one dimension of size 1; so it is where the result has its place."""
    op, spec = operator_of(name, index)
    kinds = types_of(spec)
    types = [kind.with_shape(()) for kind in kinds]
    arrays = arrays_of(name, spec, types)
    inferred = op.infer(*types)
    (result,) = results_of(op, arrays)
    assert (inferred.shape, np.shape(result)) == ((), ())
    assert inferred.dtype == dtype_of(result.dtype)
    (longer,) = results_of(op, [x.reshape(1) for x in arrays])
    np.testing.assert_array_equal(result, longer.reshape(()))
    into = op.kernel_into(BACKEND)
    if into is not None:
        with np.errstate(all="ignore"):
            out = np.empty((), result.dtype)
            assert into(*arrays, out=out) is out
            np.testing.assert_array_equal(out, result)


@grouped(DIFFERENTIABLE)
def test_gradient_agrees_with_differences(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec)
    check_gradients(op, arrays_of(name, spec, types), types)


@grouped(
    [(name, i, ranks) for name, i in CASES for place, ranks in enumerate(RANKS) if is_taken(i + place, 2)]
)
def test_every_legal_strategy_equals_the_whole_run(name: str, index: int, ranks: int) -> None:
    """An operator's samples are by turns on one of the numbers of ranks."""
    op, spec = operator_of(name, index)
    types = types_of(spec)
    with np.errstate(all="ignore"):
        assert check_sharded(op, arrays_of(name, spec, types), types, ranks) >= 1


@grouped(LINEAR)
def test_declared_linearity_holds(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec)
    inputs = arrays_of(name, spec, types)
    whole = results_of(op, inputs)
    for i in op.linear_in:
        if types[i].dtype == BOOL:
            continue
        parts = [[_half(x, j) if k == i else x for k, x in enumerate(inputs)] for j in (0, 1)]
        _assert_sum(op, parts, whole)
    if op.additive:
        _assert_sum(op, [[_half(x, j) for x in inputs] for j in (0, 1)], whole)


def _half(x: Any, part: int) -> Any:
    third = (x // 3 if x.dtype.kind in "iu" else x * 0.3).astype(x.dtype)
    return (x - third) if part else third


def _assert_sum(op: Op, parts: list[list[Any]], whole: tuple[Any, ...]) -> None:
    first, second = (results_of(op, part) for part in parts)
    for one, other, both in zip(first, second, whole, strict=True):
        tolerance = 1e-6 if both.dtype == np.float32 else 1e-10
        np.testing.assert_allclose(one + other, both, rtol=tolerance, atol=tolerance, err_msg=str(op))


@grouped(CASES, MANY)
def test_text_reads_back_equal(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    graph = Graph("sample")
    graph.parameters = [Parameter(f"x{i}", t) for i, t in enumerate(types_of(spec, "Float32"))]
    graph.results = [Builder(graph).emit(op, *graph.parameters)]
    text = print_graph(graph)
    again = parse(text, REGISTRY).main
    assert difference(graph, again) == ""
    assert print_graph(again) == text


def test_wrong_rule_is_caught() -> None:
    class WrongSoftmax(Op, abstract=True):
        def rule(self, x: TensorType) -> str:
            return "a b -> a b"  # the axis b must not be sharded

        def run(self, be: Any, *inputs: Any) -> Any:
            power = be.xp.exp(inputs[0])
            return power / power.sum(axis=-1, keepdims=True)

    spec = sample((8, 16))
    types = types_of(spec)
    with pytest.raises(AssertionError, match="Not equal"):
        check_sharded(WrongSoftmax(), arrays_of("WrongSoftmax", spec, types), types, 4)


def test_wrong_reduction_is_caught() -> None:
    class WrongMaximum(Op, abstract=True):
        def rule(self, x: TensorType) -> str:
            return "a b -> a"  # partial maxima do not combine by the default, a sum

        def run(self, be: Any, *inputs: Any) -> Any:
            return be.xp.max(inputs[0], axis=-1)

    spec = sample((8, 16), low=1.0)
    types = types_of(spec)
    with pytest.raises(AssertionError, match="Not equal"):
        check_sharded(WrongMaximum(), arrays_of("WrongMaximum", spec, types), types, 4)


def test_a_choice_of_many_keeps_the_extremes_and_the_order() -> None:
    for count in (24, 25, 47, 1000):
        chosen = spread(list(range(count)), 24)
        assert len(set(chosen)) == len(chosen) == 24
        assert chosen == sorted(chosen)
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        assert max(b - a for a, b in pairwise(chosen)) < 3 * count / 24
    assert spread([1, 2, 3], 24) == [1, 2, 3]

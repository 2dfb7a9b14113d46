"""Tensors without elements through every operator: the right shapes, on ranks too, or an error that says what lacks."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from simulate import BACKEND, arrays_of, check_sharded, gradient_graph, interpret, operator_of, samples_of, types_of
from test_ops import ELSEWHERE

from mspc.ops.op import NotDifferentiable, Sample
from mspc.sharding.rules import reshape_rule
from tests.errors import error_of
from tests.graphs import MspcError, element_types
from tests.grouped import MANY, grouped

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty slice")


def emptied(spec: Sample) -> Iterator[Sample]:
    """The sample with every size of its shapes replaced by 0, one after the other."""
    for size in sorted({n for shape in spec.shapes for n in shape}):
        yield replace(spec, shapes=tuple(tuple(0 if n == size else n for n in shape) for shape in spec.shapes))


@grouped(list(samples_of(ELSEWHERE)), MANY)
def test_tensors_without_elements(name: str, index: int) -> None:
    op, spec = operator_of(name, index)
    for empty in emptied(spec):
        types = types_of(empty)
        try:
            results = element_types(op.infer(*types))
        except MspcError:
            continue
        arrays = arrays_of(name, empty, types)
        with np.errstate(all="ignore"):
            try:
                check_sharded(op, arrays, types, 2)
            except (IndexError, MspcError):
                assert any(t.dtype.is_integer for t in types)  # an index into nothing, or an end of what is not there
                continue
            floats = [i for i, t in enumerate(results) if t.dtype.is_float]
            if isinstance(op.bprop, NotDifferentiable) or not floats or not spec.gradient:
                continue
            try:
                graph, inputs, sensitivities, gradients = gradient_graph(op, types, floats)
            except MspcError:
                continue  # it has none for such shapes, and says so
            ones = [np.ones(d.shape, d.tensor_type.dtype.numpy) for d in sensitivities]
            found = interpret(graph, dict(zip([*inputs, *sensitivities], [*arrays, *ones], strict=True)), gradients)
        for type, gradient in zip(types, found, strict=True):
            assert gradient is None or gradient.shape == type.shape


def test_whole_results_have_the_inferred_shapes() -> None:
    for name, index in samples_of(ELSEWHERE):
        op, spec = operator_of(name, index)
        for empty in emptied(spec):
            types = types_of(empty)
            try:
                results = element_types(op.infer(*types))
                with np.errstate(all="ignore"):
                    made = op.kernel(BACKEND)(*arrays_of(name, empty, types))
            except (MspcError, IndexError):
                continue
            made = made if isinstance(made, tuple) else (made,)
            assert [array.shape for array in made] == [t.shape for t in results], (op, empty.shapes)


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        ((0, 4), (4, 0), "a=0! b=4! -> c=4! d=0!"),
        ((8, 0, 4), (8, 0), "a=8 b=0 c=4! -> a=8 b=0"),
        ((8, 0), (16, 0), "a=8! b=0! -> c=16! d=0!"),
        ((8, 1, 0), (8, 0), "a=8 1 c=0! -> a=8 d=0!"),
        ((0,), (0, 3, 2), "a=0 -> a=0 b=3! c=2!"),
    ],
)
def test_rules_of_empty_reshapes(source: tuple[int, ...], target: tuple[int, ...], rule: str) -> None:
    assert reshape_rule(source, target) == rule


@pytest.mark.parametrize(
    ("name", "fields", "shapes", "message"),
    [
        ("ReduceMax", {"axis": (1,)}, ((8, 0),), "ReduceMax: dimension 1 of input 0 is empty and has no extremum"),
        ("Argmax", {}, ((8, 0),), "Argmax: dimension 1 of input 0 is empty and has no extremum"),
        ("Unstack", {}, ((0, 4),), "Unstack: dimension 0 of input 0 is empty and has no slice"),
        ("LayerNorm", {}, ((8, 0), (0,), (0,)), "LayerNorm: dimension 1 of input 0 is empty and has no mean"),
    ],
)
def test_what_has_no_result_is_refused(
    name: str, fields: dict[str, object], shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    spec = Sample(shapes=shapes, fields=fields)
    assert error_of(lambda: type(operator_of(name, 0)[0])(**fields).infer(*types_of(spec))).message == message

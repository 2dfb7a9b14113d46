"""Helpers of the generated operator tests: inputs from samples, a small interpreter, legal strategies, fake
ranks.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.layout import Axes
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, Sample
from mspc.sharding.rules import Rule
from tests.graphs import Builder, Constant, Graph, Parameter, TensorType, Value, dtype_of, element_types
from tests.ops.backend import BACKEND
from tests.ops.ranks import expands, on_ranks

COMBINE = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "all": np.all,
    "any": np.any,
}
MOST, MAX_TOGETHER = 24, 10
"""Strategies that are tried of one sample on one number of ranks: of operators that run alone on every rank, and of
those that expand to others, which meet in collectives."""


def samples_of(excluded: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Return (operator name, index of a sample) of every operator but these and those of these modules of mspc.ops."""
    for name, cls in sorted(REGISTRY.items()):
        if (
            cls.__module__.startswith("mspc.ops.")
            and cls.__module__.removeprefix("mspc.ops.") not in excluded
            and name not in excluded
        ):
            yield from ((name, index) for index in range(len(cls.samples)))


def wants_gradient(name: str, index: int) -> bool:
    """Whether a sample's gradient is to be checked: it says so, and a result is floating point."""
    op, sample = operator_of(name, index)
    if not sample.gradient or isinstance(op.bprop, NotDifferentiable):
        return False
    return any(t.dtype.is_float for t in element_types(op.infer(*types_of(sample))))


def operator_of(name: str, index: int) -> tuple[Op, Sample]:
    sample = REGISTRY[name].samples[index]
    return REGISTRY[name](**sample.fields), sample


def types_of(sample: Sample, floats: str = "Float64") -> tuple[TensorType, ...]:
    names = sample.dtypes or ("Float64",) * len(sample.shapes)
    return tuple(
        TensorType(dtype_of(floats if name == "Float64" else name), shape)
        for name, shape in zip(names, sample.shapes, strict=True)
    )


def arrays_of(name: str, sample: Sample, types: Sequence[TensorType]) -> list[np.ndarray[Any, Any]]:
    """Random inputs, always the same for one sample."""
    random = np.random.default_rng(zlib.crc32(f"{name} {sample.shapes} {sorted(sample.fields.items())}".encode()))
    found: list[np.ndarray[Any, Any]] = []
    for t in types:
        if t.dtype.kind == "b":
            values: Any = random.random(t.shape) < 0.5
        elif t.dtype.is_integer:
            values = random.integers(int(sample.low), math.ceil(sample.high), t.shape)
        else:
            values = random.uniform(sample.low, sample.high, t.shape)
            if t.dtype.is_complex:
                values = values + 1j * random.uniform(sample.low, sample.high, t.shape)
        found.append(np.array(values, dtype=t.dtype.numpy))
    return found


def results_of(op: Op, inputs: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """The operator's results on copies of the inputs, a tuple even when there is one."""
    with np.errstate(all="raise", under="ignore"):
        out = op.kernel(BACKEND)(*[np.array(x) for x in inputs])
    return out if isinstance(out, tuple) else (out,)


def interpret(graph: Graph, fed: dict[Value, Any], wanted: Sequence[Value | None]) -> list[Any]:
    """Values of `wanted` when the parameters hold `fed`."""
    values = dict(fed)

    def value_of(v: Value) -> Any:
        return v.value if isinstance(v, Constant) else values[v]

    for node in graph.nodes:
        assert isinstance(node.op, Op)
        values[node] = node.op.kernel(BACKEND)(*[value_of(v) for v in node.inputs])
    return [None if v is None else value_of(v) for v in wanted]


def gradient_graph(
    op: Op, types: Sequence[TensorType], wanted: Sequence[int]
) -> tuple[Graph, list[Parameter], list[Parameter], Any]:
    """(graph, parameters for the inputs, parameters for the sensitivities, gradients) of one operator.

    wanted: the results that are differentiated.
    """
    graph = Graph("gradient")
    b = Builder(graph)
    inputs = [Parameter(f"x{i}", t) for i, t in enumerate(types)]
    out = b.emit(op, *inputs)
    results = element_types(out.type)
    given = {i: Parameter(f"d{i}", results[i]) for i in wanted}
    sensitivities = list(given.values())
    douts = [given.get(i) for i in range(len(results))]
    graph.parameters = [*inputs, *sensitivities]
    single = isinstance(out.type, TensorType)
    grads = op.gradient(b, inputs, out, douts[0] if single else douts)
    return graph, inputs, sensitivities, grads


def strategies(rule: Rule, ranks: int) -> Iterator[list[int]]:
    """Every number of slices per factor that is legal on `ranks` ranks."""
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    choices = [[1] if f in rule.frozen else [d for d in divisors if size % d == 0] for f, size in enumerate(rule.sizes)]

    def extend(f: int, left: int) -> Iterator[list[int]]:
        if f == len(choices):
            yield []
            return
        for d in choices[f]:
            if left % d == 0:
                yield from ([d, *rest] for rest in extend(f + 1, left // d))

    for cuts in extend(0, ranks):
        if all(_majors_whole(dim, cuts, rule) for dims in (*rule.inputs, *rule.outputs) for dim in dims):
            yield cuts


def _majors_whole(dim: Sequence[int], cuts: Sequence[int], rule: Rule) -> bool:
    """A minor factor of a dimension may be sharded only where all before it have slices of size 1."""
    return all(
        cuts[minor] == 1 or all(cuts[major] == rule.sizes[major] for major in dim[:place])
        for place, minor in enumerate(dim)
    )


def layouts_of(rule: Rule, cuts: Sequence[int], ranks: int, backwards: bool) -> tuple[Any, Any]:
    """(layouts of inputs, layouts of outputs) for a strategy; mesh axes in the factors' order or the other
    way round.
    """
    used = [f for f, cut in enumerate(cuts) if cut > 1]
    spare = ranks // math.prod(cuts)
    order = used[::-1] if backwards else used
    mesh = (spare, *(cuts[f] for f in order)) if backwards else (*(cuts[f] for f in order), spare)
    axes: list[Axes] = [()] * len(cuts)
    for place, f in enumerate(order):
        axes[f] = (place + 1,) if backwards else (place,)
    return rule.layouts(mesh, axes)


@lru_cache(maxsize=256)
def chosen_layouts(rule: Rule, ranks: int, most: int) -> list[tuple[Any, Sequence[int]]]:
    """((layouts of inputs, layouts of outputs), slices per factor) of the legal strategies that are tried, each pair of
    layouts once; at most so many."""
    different: dict[Any, Sequence[int]] = {}
    for cuts, backwards in itertools.product(strategies(rule, ranks), (False, True)):
        different.setdefault(layouts_of(rule, cuts, ranks, backwards), cuts)
    return spread(list(different.items()), most)


def check_sharded(
    op: Op, inputs: Sequence[Any], types: Sequence[TensorType], ranks: int, most: int | None = None
) -> int:
    """Run `op` on simulated ranks under every legal strategy and compare with the run on one device.

    Where there are more than `most`, the first, the last and others spread between them stand for all.

    Returns the number of strategies. Raises AssertionError where a result, a type or a mutated operand
    differs.
    """
    rule = op.parsed_rule(*types)
    out_types = element_types(op.infer(*types))
    whole_inputs = [np.array(x) for x in inputs]
    expected = op.kernel(BACKEND)(*whole_inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    chosen = chosen_layouts(rule, ranks, most or (MAX_TOGETHER if expands(op) else MOST))
    for (ins, outs), cuts in chosen:
        parts: list[dict[Any, list[Any]]] = [{} for _ in expected]

        def where(cuts: Any = cuts, ins: Any = ins, outs: Any = outs) -> str:
            return f"{op} {rule} strategy {cuts} layouts {[str(x) for x in ins]} -> {[str(x) for x in outs]}"

        runs = on_ranks(op, ranks, types, ins, out_types, outs, inputs)
        for rank, (results, inferred, operands) in enumerate(runs):
            for i, (got, t, layout) in enumerate(zip(results, out_types, outs, strict=True)):
                assert inferred[i] == t.with_shape(layout.local_shape(t.shape)), f"{where()}: local type {i}"
                assert got.shape == inferred[i].shape, f"{where()}: shape of {i} is {got.shape}"
                assert got.dtype == t.dtype.numpy, f"{where()}: dtype of {i} is {got.dtype}"
            for index in op.mutates:
                wanted = whole_inputs[index][ins[index].slices_for(rank, whole_inputs[index].shape)]
                assert_close(operands[index], wanted, 1e-12, 1e-12, where)
            for i, layout in enumerate(outs):
                place = layout.coordinates(rank)
                if any(place[a] for a in layout.unused):
                    continue
                parts[i].setdefault(layout.slice_index(rank), []).append((rank, results[i]))
        for whole, layout, pieces in zip(expected, outs, parts, strict=True):
            for contributions in pieces.values():
                rank = contributions[0][0]
                combined = contributions[0][1]
                if layout.is_partial:
                    combined = COMBINE[layout.reduction](np.stack([c for _, c in contributions]), axis=0)
                else:
                    assert len(contributions) == 1, f"{where()}: {len(contributions)} ranks hold one slice"
                wanted = whole[layout.slices_for(rank, whole.shape)]
                assert_close(combined, wanted, 1e-10, 1e-12, where)
    return len(chosen)


def assert_close(found: Any, wanted: Any, relative: float, absolute: float, where: Callable[[], str]) -> None:
    """NumPy's `assert_allclose`, which takes a tenth of a millisecond: where every element is equal, or both are no
    number, nothing else has to be asked. `where` says what is compared."""
    if found.shape == wanted.shape:
        equal = found == wanted
        if equal.all() or (equal | ((found != found) & (wanted != wanted))).all():
            return
    try:
        np.testing.assert_allclose(found, wanted, rtol=relative, atol=absolute)
    except AssertionError as error:
        error.add_note(where())
        raise


def spread(found: list[Any], most: int) -> list[Any]:
    """At most so many of a list, in its order: the first, the last, and of every stretch between them one at random."""
    if len(found) <= most:
        return found
    edges = np.linspace(1, len(found) - 1, most - 1).astype(int)
    between = np.random.default_rng(len(found)).integers(edges[:-1], edges[1:])
    return [found[0], *(found[i] for i in between), found[-1]]


def check_gradients(op: Op, inputs: Sequence[Any], types: Sequence[TensorType]) -> None:
    """Compare the operator's gradients with differences, of all results together and of each alone."""
    floats = [i for i, t in enumerate(element_types(op.infer(*types))) if t.dtype.is_float]
    check_gradient(op, inputs, types, floats)
    for i in floats if len(floats) > 1 else ():
        check_gradient(op, inputs, types, [i])


def check_gradient(op: Op, inputs: Sequence[Any], types: Sequence[TensorType], floats: Sequence[int]) -> None:
    """Compare the gradients of the results `floats` with central differences along a random direction, in
    float64.
    """
    graph, x, sensitivities, grads = gradient_graph(op, types, floats)
    random = np.random.default_rng(len(floats))
    weights = [random.uniform(0.5, 1.5, d.shape) for d in sensitivities]
    found = interpret(graph, dict(zip([*x, *sensitivities], [*inputs, *weights], strict=True)), grads)

    def value(at: Sequence[Any]) -> float:
        out = results_of(op, at)
        return float(sum(np.sum(out[i] * w) for i, w in zip(floats, weights, strict=True)))

    for index, (t, grad) in enumerate(zip(types, found, strict=True)):
        if not t.dtype.is_float:
            # A function of integers has none but what scripts ask for, which is of the integers' type.
            assert grad is None or (grad.dtype, grad.shape) == (t.dtype.numpy, t.shape), f"{op}: input {index} is {t}"
            continue
        direction = random.standard_normal(t.shape)
        step = 1e-6
        ahead = [a + step * direction if i == index else a for i, a in enumerate(inputs)]
        behind = [a - step * direction if i == index else a for i, a in enumerate(inputs)]
        numeric = (value(ahead) - value(behind)) / (2 * step)
        if grad is None:
            assert abs(numeric) < 1e-6, f"{op}: input {index} has derivative {numeric} but no gradient"
            continue
        assert grad.shape == t.shape, f"{op}: the gradient of input {index} has shape {grad.shape}"
        assert grad.dtype == t.dtype.numpy, f"{op}: the gradient of input {index} is {grad.dtype}"
        exact = float(np.sum(grad * direction))
        scale = max(1.0, abs(numeric), abs(exact))
        assert abs(numeric - exact) < 2e-6 * scale, f"{op}: input {index}: {exact} and numerically {numeric}"

"""FusedElementwise and GroupedUpdate: the same bits as their members, texts, mistakes in bodies."""

import math
import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.ir.types import FLOAT16, FLOAT32, TensorType, TupleType, dtype_of
from mspc.ops.bases import Elementwise
from mspc.ops.fused.body import line_of, read_line
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.kernel import space_of
from mspc.ops.fused.updates import GroupedUpdate
from tests.errors import error_of
from tests.graphs import REGISTRY, Graph, MspcError, Parameter, parse, print_graph
from tests.shares import share_of

BACKEND = SimpleNamespace(xp=np, comm=None, step=1)
UNARY = ("Neg", "Abs", "Square", "Exp", "Tanh", "Sqrt", "ReLU", "GeLU", "Sigmoid", "Sign", "Identity")
BINARY = ("Add", "Sub", "Mul", "Maximum", "Div", "SquaredDifference")
SHAPES = ((6, 7, 8), (40, 9), (1, 300), (350,), (5, 1, 60), (2, 3, 1, 50))


def line_by_line(op: FusedElementwise, operands: list[Any]) -> list[Any]:
    lines: list[Any] = []
    for step in steps_of(op):
        lines.append(step.op.run(BACKEND, *((operands if k == "x" else lines)[i] for k, i in step.operands)))
    return [lines[i] for i in op.returns]


def random_body(draw: random.Random, shape: tuple[int, ...]) -> tuple[FusedElementwise, list[Any]]:
    """Lines of the shape, some behind a view that has all elements in one row, with operands that are broadcast to it,
    and arrays for the operands."""
    shapes = [shape]
    lines: list[str] = []
    dtypes: list[str] = []  # of the lines
    reduced: set[int] = set()
    rank = len(shape)

    def operand(dtype: str) -> str:
        fitting = [f"t{i}" for i, d in enumerate(dtypes) if d == dtype and i not in reduced]
        if fitting and draw.random() < 0.7:
            return draw.choice(fitting)
        if dtype != "Float32":
            whole = draw.choice([i for i, d in enumerate(dtypes) if d == "Float32" and i not in reduced])
            lines.append(f"Cast(t{whole}, dst_type={dtype})")
            dtypes.append(dtype)
            return f"t{len(lines) - 1}"
        other = tuple(1 if draw.random() < 0.3 else n for n in shape)[draw.choice((0, 0, rank - 1)) :]
        shapes.append(draw.choice((shape, other, ())))
        return f"x{len(shapes) - 1}"

    lines.append(f"{draw.choice(UNARY)}(x0)")
    dtypes.append("Float32")
    for _ in range(draw.randint(1, 9)):
        chain = [i for i in range(len(lines)) if i not in reduced]
        at = draw.choice(chain)
        kind = draw.randrange(9)
        if kind == 8:
            made, dtype = f"Reshape(t{at}, shape=({', '.join(map(str, shape))}))", dtypes[at]
        elif kind < 3 and dtypes[at] != "Bool":
            made, dtype = f"{draw.choice(UNARY)}(t{at})", dtypes[at]
        elif kind < 6 and dtypes[at] != "Bool":
            pair = [f"t{at}", operand(dtypes[at])]
            draw.shuffle(pair)
            name = draw.choice((*BINARY, "Greater"))
            made, dtype = f"{name}({', '.join(pair)})", "Bool" if name == "Greater" else dtypes[at]
        elif kind == 6 and dtypes[at] == "Bool":
            chosen = operand("Float32"), f"t{draw.choice([i for i in chain if dtypes[i] == 'Float32'])}"
            made, dtype = f"Select(t{at}, {', '.join(chosen)})", "Float32"
        elif kind == 7 and dtypes[at] == "Float32":
            count = draw.randint(1, rank)
            axes = draw.choice((range(count), range(rank - count, rank), range(rank)))
            keep = draw.choice(("true", "false"))
            name = draw.choice(("ReduceSum", "ReduceMean", "ReduceMax"))
            made, dtype = f"{name}(t{at}, keep_dims={keep}, axis=({', '.join(map(str, axes))}))", "Float32"
        else:
            dtype = draw.choice(("Float32", "Float16"))
            made = f"Cast(t{at}, dst_type={dtype})"
        if made.startswith("Reduce"):
            reduced.add(len(lines))
        lines.append(made)
        dtypes.append(dtype)
    read = set(re.findall(r"t\d+", " ".join(lines)))
    returns = [i for i in range(len(lines)) if f"t{i}" not in read or draw.random() < 0.3]
    draw.shuffle(returns)
    flat = draw.random() < 0.3  # every line in front of a view of all elements in a row, too
    if flat:
        views = [f"Reshape(x0, shape=({math.prod(shape)}))", f"Reshape(t1, shape=({', '.join(map(str, shape))}))"]
        moved = [re.sub(r"\bt(\d+)", lambda m: f"t{int(m[1]) + 3}", line) for line in lines]
        lines = [views[0], "Neg(t0)", views[1], *(re.sub(r"\bx0\b", "t2", line) for line in moved)]
        returns = [i + 3 for i in returns]
    arrays = [np.random.default_rng(draw.randrange(1 << 30)).standard_normal(s).astype(np.float32) for s in shapes]
    return FusedElementwise(tuple(lines), tuple(returns)), arrays


@settings(max_examples=share_of(300), deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from(SHAPES))
def test_bits_are_those_of_the_lines(seed: int, shape: tuple[int, ...]) -> None:
    op, operands = random_body(random.Random(seed), shape)
    with np.errstate(all="ignore"):
        expected = line_by_line(op, operands)
        result = op.kernel(BACKEND)(*operands)
        type = op.infer(*(TensorType(dtype_of(a.dtype), a.shape) for a in operands))
        out = in_place(op, type, operands)
    found = result if isinstance(result, tuple) else (result,)
    types = type.elements if isinstance(type, TupleType) else (type,)
    chooses = any("Maximum(" in line or "Minimum(" in line for line in op.body)
    for number, (a, b, t) in enumerate(zip(expected, found, types, strict=True)):
        assert np.asarray(b).dtype == a.dtype == t.dtype.numpy
        assert np.shape(b) == np.shape(a) == t.shape
        assert bits(b, chooses) == bits(a, chooses), op.body
        assert bits(out[number], chooses) == bits(a, chooses), op.body
        assert not any(np.shares_memory(b, operand) for operand in operands)


def bits(array: Any, one_zero: bool = False) -> bytes:
    """The bytes of an array; all NaNs are one, as NumPy's vector loops leave their signs to the place of an element.
    one_zero: so are 0 and -0, of which its maximum takes either."""
    array = np.array(array)
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
        if one_zero:
            array[array == 0] = 0
    return array.tobytes()


def in_place(op: FusedElementwise, type: Any, operands: list[Any]) -> tuple[Any, ...]:
    """The results where they stand in the memory of operands of their types as far as these suffice."""
    copies = [array.copy() for array in operands]
    free = [array for array in copies]
    outs: list[Any] = []
    for t in type.elements if isinstance(type, TupleType) else (type,):
        place = next((i for i, a in enumerate(free) if a.shape == t.shape and a.dtype == t.dtype.numpy), None)
        outs.append(np.empty(t.shape, t.dtype.numpy) if place is None else free.pop(place))
    kernel = op.kernel_into(BACKEND)
    assert kernel is not None
    result = kernel(*copies, out=tuple(outs) if len(outs) > 1 else outs[0])
    found = result if isinstance(result, tuple) else (result,)
    assert all(a is b for a, b in zip(found, outs, strict=True))
    return tuple(outs)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[::2], lambda x: np.broadcast_to(x[:1], x.shape)])
def test_operands_may_be_views(view: Any) -> None:
    op = FusedElementwise(("Mul(x0, x1)", "GeLU(t0)", "ReduceSum(t1, keep_dims=false, axis=(1))"), (1, 2))
    whole = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    operands = [view(whole), np.float32(2).reshape(())]
    for a, b in zip(op.kernel(BACKEND)(*operands), line_by_line(op, operands), strict=True):
        np.testing.assert_array_equal(a, b)


def test_line_keeps_its_attributes() -> None:
    for op in (REGISTRY["Cast"](dst_type=FLOAT16), REGISTRY["ReduceSum"](True, (0, 1)), REGISTRY["Add"]()):
        operands = (("x", 0), ("t", 12))[: 1 + (op.name == "Add")]
        step = read_line(line_of(op, operands))
        assert (step.op, step.operands) == (op, operands)


def test_text_reads_back_equal() -> None:
    body = ("Cast(x0, dst_type=Float16)", "NanToNum(t0, nan=None, posinf=1.5, neginf=None)")
    op = FusedElementwise(body, (1, 0))
    graph = Graph("g")
    x = Parameter("x", TensorType(FLOAT32, (4,)))
    graph.parameters.append(x)
    from mspc.ir.graph import Builder

    whole = Builder(graph).emit(op, x)
    update = Builder(graph).emit(GroupedUpdate("Assign()", 1), x, x)
    graph.results = [Builder(graph).emit(REGISTRY["TupleGetItem"](0), whole)]
    text = print_graph(graph)
    again = parse(text, REGISTRY).main
    assert [node.op for node in again.nodes[:2]] == [op, update.op]
    assert print_graph(again) == text


def test_lines_of_several_shapes_go_through_one_space() -> None:
    body = (
        "Cast(x0, dst_type=Float32)", 'BiasAdd(t0, x1, data_format="NCHW")', "Reshape(t1, shape=(4, 6, 5))",
        "Add(t2, x2)", "ReduceSum(t3, keep_dims=false, axis=(0, 1))", "ReduceSum(t1, keep_dims=true, axis=(1))",
    )  # fmt: skip
    op = FusedElementwise(body, (2, 3, 4, 5))
    types = [TensorType(FLOAT16, (24, 5)), TensorType(FLOAT32, (5,)), TensorType(FLOAT32, (6, 1))]
    space = space_of(op.body, steps_of(op), types, step_types(op, types))
    assert (space.dims, space.columns) == ((4, 6, 5), 0)
    assert [shapes[-1] for shapes in space.shapes] == [(4, 6, 5), (1, 1, 5), (4, 6, 5), (1, 6, 1), *[(4, 6, 5)] * 2]
    generator = np.random.default_rng(0)
    operands = [generator.standard_normal(t.shape).astype(t.dtype.numpy) for t in types]
    for one, other in zip(op.kernel(BACKEND)(*operands), line_by_line(op, operands), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("body", "shapes", "message"),
    [
        (("Reshape(x0, shape=(3, 4))", "Add(t0, x1)", "Reshape(t1, shape=(4, 3))", "Add(t2, x2)"), ((12,), (4,), (3,)),
         "the lines of the fused operator go through 12 elements in ways that do not fit together"),
        (("Neg(x0)", "ReduceSum(t0, keep_dims=false, axis=(0))", "Neg(t1)"), ((4, 3),),
         "the line 'ReduceSum(t0, keep_dims=false, axis=(0))' does not go along the last dimensions of several rows of "
         "(4, 3)"),
        (("Neg(x0)", "ReduceSum(t0, keep_dims=false, axis=(1))", "Mul(t0, t1)"), ((3, 3),),
         "the line 'Mul(t0, t1)' reads t1 of shape (3,) otherwise than by rows"),
    ],
)  # fmt: skip
def test_lines_without_a_common_space_are_named(
    body: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    op = FusedElementwise(body, (len(body) - 1,))
    error = error_of(op.infer, *(TensorType(FLOAT32, shape) for shape in shapes))
    assert error.message == f"FusedElementwise: {message}"


def test_a_row_may_be_read_again() -> None:
    op = FusedElementwise(("ReduceMean(x0, keep_dims=true, axis=(1))", "Sub(x0, t0)", "Square(t1)"), (2, 0))
    (x,) = operands = [np.arange(12, dtype=np.float32).reshape(3, 4)]
    assert space_of(op.body, steps_of(op), [TensorType(FLOAT32, (3, 4))], step_types(op, [TensorType(FLOAT32, (3, 4))]))
    for one, other in zip(op.kernel(BACKEND)(x), line_by_line(op, operands), strict=True):
        np.testing.assert_array_equal(one, other)


BAD = [
    ((), (0,), "a fused operator has no lines"),
    (("Add x0",), (0,), "in the line 'Add x0' of a fused operator: it is not of the form Name(x0, t0, key=value)"),
    (("Foo(x0)",), (0,), "in the line 'Foo(x0)' of a fused operator: there is no operator Foo"),
    (("MatMul(x0, x1, transpose_a=false, transpose_b=false)",), (0,),
     "in the line 'MatMul(x0, x1, transpose_a=false, transpose_b=false)' of a fused operator: "
     "MatMul does not work element by element"),
    (("Add(x0, y1)",), (0,),
     "in the line 'Add(x0, y1)' of a fused operator: 'y1' is neither x0, x1, ... nor t0, t1, ... nor key=value"),
    (("Cast(x0)",), (0,), "in the line 'Cast(x0)' of a fused operator: Cast lacks the attribute 'dst_type'"),
    (("Cast(x0, dst_type=3)",), (0,),
     "in the line 'Cast(x0, dst_type=3)' of a fused operator: Cast: attribute 'dst_type' is 3, not DType"),
    (("Cast(x0, dst_type=__import__('os'))",), (0,),
     "in the line \"Cast(x0, dst_type=__import__('os'))\" of a fused operator: unexpected \"('os')}\""),
    (("Neg(x0)", "Neg(t1)"), (1,),
     "in the line 'Neg(t1)' of a fused operator: t1 is not the result of an earlier line"),
    (("ReduceSum(x0, x1, keep_dims=false, axis=())",), (0,),
     "in the line 'ReduceSum(x0, x1, keep_dims=false, axis=())' of a fused operator: ReduceSum reads one tensor"),
    (("Reshape(x0, x1, shape=(4))",), (0,),
     "in the line 'Reshape(x0, x1, shape=(4))' of a fused operator: Reshape reads one tensor"),
    (("Neg(x0)", "Neg(x0)"), (1,),
     "in the line 'Neg(x0)' of a fused operator: its result is neither read nor returned"),
    (("AddN()",), (0,), "in the line 'AddN()' of a fused operator: it reads nothing"),
    (("Neg(x1)",), (0,), "no line of the fused operator reads x0"),
    (("Neg(x0)",), (1,), "a fused operator of 1 lines cannot return (1,)"),
    (("Neg(x0)",), (), "a fused operator of 1 lines cannot return ()"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "returns", "message"), BAD)
def test_bad_bodies_are_named(body: tuple[str, ...], returns: tuple[int, ...], message: str) -> None:
    assert error_of(FusedElementwise, body, returns).message == message


def test_bad_body_in_a_file_has_its_line() -> None:
    text = """#IR entry      : @g
#Total subgraph: 1

#attrs         :
#Total params  : 1

%para1_x: <Tensor[Float32], (4)>

subgraph @g() {
  %0 = FusedElementwise(%para1_x) primitive_attrs: {body: ("Neg(t0)"), returns: (0)}
      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}
"""
    error = error_of(parse, text, REGISTRY, "bad.ir")
    assert error.message == "in the line 'Neg(t0)' of a fused operator: t0 is not the result of an earlier line"
    assert (error.location.file, error.location.line) == ("bad.ir", 10)


def test_operands_that_do_not_fit_are_named() -> None:
    four, five = TensorType(FLOAT32, (4,)), TensorType(FLOAT32, (5,))
    op = FusedElementwise(("Add(x0, x1)", "Neg(x0)"), (0, 1))
    with pytest.raises(MspcError, match=r"^error: FusedElementwise takes 2 tensors, not 1$"):
        op.infer(four)
    error = error_of(op.infer, TensorType(FLOAT32, (1,)), five)
    assert error.message == "FusedElementwise: the line 'Neg(x0)' has shape (1,), the line 'Add(x0, x1)' (5,)"
    assert step_types(op, [four, four]) == [four, four]


def test_group_does_what_its_members_do() -> None:
    generator = np.random.default_rng(0)
    line = "ApplyMomentum(use_nesterov=true, use_locking=false, gradient_scale=0.5)"
    op = GroupedUpdate(line, 2)
    rate, momentum = np.float32(0.1), np.float32(0.9)
    members = []
    for shape in ((3, 4), (5,)):
        wide = [generator.random(shape).astype(np.float32) for _ in range(2)]
        members.append([*wide, rate, generator.random(shape).astype(np.float16), momentum])
    copies = [[np.array(a) for a in member] for member in members]
    types = [TensorType(dtype_of(np.asarray(a).dtype), np.shape(a)) for member in members for a in member]
    assert op.mutates == (0, 1, 5, 6)
    assert op.infer(*types) == TupleType((types[0], types[5]))
    results = op.run(BACKEND, *members[0], *members[1])
    for member, copy, result in zip(members, copies, results, strict=True):
        copy[3] = copy[3].astype(np.float32)
        expected = op.member.run(BACKEND, *copy)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(member[1], copy[1])
        assert result is member[0]


def test_all_results_of_a_group_of_adams() -> None:
    op = GroupedUpdate("Adam(use_locking=false, use_nesterov=false)", 2)
    arrays = [np.full(3 if i in (0, 1, 2, 9) else (), 0.5, np.float32) for i in range(10)]
    operands = [np.array(a) for a in arrays * 2]
    results = op.run(BACKEND, *operands)
    assert [id(a) for a in results] == [id(operands[i]) for i in (0, 1, 2, 10, 11, 12)]


@pytest.mark.parametrize(
    ("line", "count", "message"),
    [
        ("Add()", 2, "GroupedUpdate: Add is no update of a parameter"),
        ("Assign(x0, x1)", 2, "GroupedUpdate: 'Assign(x0, x1)' names operands; write Assign(key=value) alone"),
        ("Assign()", 0, "GroupedUpdate has 0 members; it needs at least one"),
        ("", 1, "in the line '' of a fused operator: it is not of the form Name(x0, t0, key=value)"),
    ],
)
def test_bad_groups_are_named(line: str, count: int, message: str) -> None:
    assert error_of(GroupedUpdate, line, count).message == message


OPERATORS = sorted(
    name
    for name, kind in REGISTRY.items()
    if issubclass(kind, Elementwise) and kind.broadcasts and kind.samples and len(kind.samples[0].shapes) > 1
)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_is_broadcast(name: str) -> None:
    found = REGISTRY[name].samples[0]
    draws = np.random.default_rng(3)
    whole = np.broadcast_shapes(*found.shapes)
    kinds = [np.dtype(kind.lower()) for kind in found.dtypes or ("float64",) * len(found.shapes)]
    full = [draws.uniform(max(found.low, 0.1), found.high, whole).astype(kind) for kind in kinds]
    signs = [np.where(draws.random(whole) < 0.5, 1, -1) if found.low < 0 and kind.kind == "f" else 1 for kind in kinds]
    full = [(array * sign).astype(array.dtype) for array, sign in zip(full, signs, strict=True)]
    kernel = REGISTRY[name](**found.fields).kernel(BACKEND)
    for place, array in enumerate(full):
        number = array.reshape(-1)[:1].reshape(())
        other = [np.full(whole, number, number.dtype) if i == place else a for i, a in enumerate(full)]
        given = [number if i == place else a for i, a in enumerate(full)]
        np.testing.assert_array_equal(kernel(*given), kernel(*other), err_msg=f"operand {place}")

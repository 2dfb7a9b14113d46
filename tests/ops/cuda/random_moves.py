"""Random bodies of fused operators with lines that move elements, and lines of other shapes between them."""

import math
import random
from typing import Any

from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.elementwise import FusedElementwise
from tests.graphs import REGISTRY, MspcError, Op, TensorType, dtype_of

DTYPES = ("Float32", "Float32", "BFloat16", "Float16", "Int32")
UNARY = ("Neg", "Abs", "Square")
SIZES = (1, 2, 3, 4, 8)


def moving(draw: random.Random, shape: tuple[int, ...]) -> Op:
    """An operator on one tensor of this shape that moves its elements."""
    rank = len(shape)
    kind = draw.randrange(6)
    if kind == 0:
        perm = list(range(rank))
        draw.shuffle(perm)
        return made("Transpose", perm=tuple(perm))
    if kind == 1:
        return made("ReverseV2", axis=tuple(d for d in range(rank) if draw.random() < 0.5))
    if kind == 2:
        return made("Pad", paddings=tuple((draw.randrange(3), draw.choice((0, 0, 4))) for _ in shape))
    if kind == 3:
        return made("Tile", multiples=tuple(draw.choice((1, 1, 2)) for _ in shape))
    if kind == 4:
        return made("RepeatInterleaveInt", repeats=2, dim=draw.randrange(rank))
    begin, end, strides = [], [], []
    for n in shape:
        step = draw.choice((1, 1, 1, 2, -1, -2))
        first, last = sorted((draw.randrange(n), draw.randrange(n)))
        begin.append(first if step > 0 else last)
        end.append(last + 1 if step > 0 else first - 1 if first else -n - 1)
        strides.append(step)
    return made("StridedSlice", begin=tuple(begin), end=tuple(end), strides=tuple(strides))


def divided_anew(draw: random.Random, size: int) -> tuple[int, ...]:
    """A shape of so many elements, 1 in places."""
    found: list[int] = []
    while size > 1:
        found.append(draw.choice([n for n in range(2, size + 1) if size % n == 0]))
        size //= found[-1]
    found += [1] * (not found or draw.random() < 0.3)
    draw.shuffle(found)
    return tuple(found)


def made(name: str, **fields: Any) -> Op:
    return REGISTRY[name](**fields)


def random_body(seed: int) -> tuple[FusedElementwise, tuple[TensorType, ...]] | None:
    """A fused operator with lines that move elements, and types of its operands; None where these lines cannot be one
    kernel."""
    draw = random.Random(seed)
    dtype = dtype_of(draw.choice(DTYPES))
    shape = tuple(draw.choice(SIZES) for _ in range(draw.randint(1, 4)))
    given = [TensorType(dtype, shape)]
    lines: list[BodyLine] = []
    types: list[TensorType] = []
    now: tuple[str, int] = ("x", 0)

    def add(op: Op, *operands: tuple[str, int]) -> tuple[str, int]:
        read = [(given if kind == "x" else types)[i] for kind, i in operands]
        types.append(op.infer(*read))  # type: ignore[arg-type]
        lines.append(BodyLine(op, operands))
        return "t", len(lines) - 1

    def operand(shape: tuple[int, ...]) -> tuple[str, int]:
        given.append(TensorType(dtype, shape))
        return "x", len(given) - 1

    for _ in range(draw.randint(2, 7)):
        shape = (given if now[0] == "x" else types)[now[1]].shape
        kind = draw.randrange(9)
        if kind < 4:
            now = add(moving(draw, shape), now)
        elif kind == 4:
            now = add(made(draw.choice(UNARY)), now)
        elif kind == 5:
            other = operand(draw.choice((shape, shape[1:], shape[-1:])))
            now = add(made("Mul"), *draw.choice(((now, other), (other, now))))
        elif kind == 6:
            axis = draw.randrange(len(shape))
            other = operand((*shape[:axis], draw.choice(SIZES), *shape[axis + 1 :]))
            pieces = [now, other, *[now] * draw.randrange(2)]
            draw.shuffle(pieces)
            now = add(made("Concat", axis=axis), *pieces)
        elif kind == 7:
            now = add(made("Reshape", shape=divided_anew(draw, math.prod(shape))), now)
        else:
            now = add(made("Add"), now, now)
    if not lines or all(type(line.op).index_map is Op.index_map for line in lines):
        return None
    along_rows = draw.random() < 0.3
    if along_rows:
        now = add(made("Sub"), now, add(made("ReduceMax", keep_dims=True, axis=(types[-1].rank - 1,)), now))
    returns = [len(lines) - 1]
    if not along_rows and draw.random() < 0.4:
        last = types[-1]
        axes = draw.choice((tuple(range(last.rank)), (last.rank - 1,), (0,)))
        returns.append(add(made(draw.choice(("ReduceSum", "ReduceMax")), axis=axes), now)[1])
    op = FusedElementwise.of(lines, returns)
    try:
        op.infer(*given)
    except MspcError:
        return None
    return op, tuple(given)

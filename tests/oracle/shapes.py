"""Judges of what makes tensors, and moves, repeats, chooses or joins elements."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.inputs import TYPES, drawn
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

THREE = [[drawn(2, 3, 4, dtype=kind)] for kind in TYPES] + [[drawn(0, 3, 4)], [drawn(1, 1, 1)]]
TWO = [[drawn(3, 4, dtype=kind)] for kind in TYPES] + [[drawn(0, 4)], [drawn(1, 1)]]
ANY = [*THREE, *TWO, [drawn(5)], [drawn()]]
PAIRS = [[drawn(2, 3, dtype=kind), drawn(2, 3, dtype=kind)] for kind in TYPES] + [
    [drawn(2, 3), drawn(2, 3, dtype="int32")]
]


def made(*fields: Any) -> Callable[..., Any]:
    """Call an operator that is made with these fields."""
    return lambda operator, *inputs: type(operator)(*fields)(*inputs)


def together(*fields: Any) -> Callable[..., Any]:
    """Call a function or an operator on the tuple of the tensors."""

    def call(function: Any, *inputs: Any) -> Any:
        if isinstance(function, type) or hasattr(function, "op"):
            return (type(function)(*fields) if fields else function)(inputs)
        return function(inputs, *fields)

    return call


def judged(names: tuple[str, ...], theirs: Any, inputs: Any, *cases: tuple[Any, ...], **more: Any) -> Judge:
    return Judge(names, theirs, inputs, cases or ((),), **more)


def _squeeze(x: Any, axis: Any = None) -> Any:
    return x.squeeze() if axis is None else x.squeeze(axis)


def _column_major(x: Any, order: str = "C") -> Any:
    """flatten of ops: dimension 0 stays; the first index runs fastest for "F"."""
    if x.dim() < 2:
        return x.reshape(-1)
    if order == "F":
        return x.permute(0, *range(x.dim() - 1, 0, -1)).flatten(1)
    return x.flatten(1)


MOVED = [
    judged(
        everywhere("transpose permute", "Transpose", "mint.transpose"),
        lambda x, order: x.permute(order),
        THREE,
        ((2, 0, 1),),
        ((-1, 0, 1),),
    ),
    judged(
        ("mint.transpose", *everywhere("swapaxes swapdims")), lambda x, a, b: x.transpose(a, b), THREE, (0, 1), (-1, 0)
    ),
    judged(everywhere("squeeze", ""), _squeeze, [[drawn(2, 1, 3, 1)], [drawn(1, 1)]], (), (1,), (-1,)),
    judged(("ops.Squeeze",), _squeeze, [[drawn(2, 1, 3, 1)]]),
    judged(everywhere("unsqueeze expand_dims", "ExpandDims"), lambda x, a: x.unsqueeze(a), ANY, (0,), (-1,)),
    judged(("ops.flatten",), _column_major, [*THREE, *TWO], (), ("F",)),
    judged(("ops.flatten",), lambda x: x.reshape(-1), [[drawn(5)]]),
    judged(("ops.Flatten",), lambda x: x.flatten(1), THREE),
]
REPEATED = [
    judged(
        ("ops.BroadcastTo",), lambda x: x.expand(2, 3, 4), [[drawn(3, 1)], [drawn(4)], [drawn()]], ours=made((2, 3, 4))
    ),
    judged(everywhere("tile", "Tile"), lambda x, reps: x.tile(reps), TWO, ((2, 1),), ((2, 1, 3),)),
    judged(
        ("mint.repeat_interleave", "ops.RepeatInterleaveInt"), torch.repeat_interleave, TWO, (2, 0), (3, -1), (2, None)
    ),
    judged(
        ("ops.RepeatInterleaveTensor",),
        lambda x, n, d: torch.repeat_interleave(x, torch.tensor(n), d),
        [[drawn(3, 4)]],
        ((1, 0, 2), 0),
    ),
    judged(("Tensor.repeat_interleave",), torch.repeat_interleave, TWO, (2, 0), (3, -1), (2,)),
    judged(("Tensor.repeat",), lambda x, *n: x.repeat(*n), TWO, (2, 1), (1, 2, 3), ((2, 3),)),
    judged(
        ("Tensor.repeat",),
        lambda x, axis: x.repeat_interleave(2, axis),
        TWO,
        (0,),
        (-1,),
        ours=lambda f, x, axis: f(x, 2, axis=axis),
    ),
    judged(everywhere("outer ger", "Outer"), torch.outer, [[drawn(3), drawn(4)]]),
    judged(("ops.Tril",), torch.tril, [*TWO, *THREE]),
    judged(("ops.Triu",), torch.triu, [*TWO, *THREE]),
]
JOINED = [
    judged(everywhere("cat concat", "Concat"), lambda *x: torch.cat(x), PAIRS, ours=together()),
    judged(
        ("ops.cat", "ops.concat", "mint.cat", "mint.concat", "ops.Concat"),
        lambda *x: torch.cat(x, -1),
        PAIRS,
        ours=together(-1),
    ),
    judged(("ops.addn", "ops.AddN"), lambda *x: sum(x[1:], x[0]), [[drawn(2, 3)] * 3], ours=together()),
    judged(("ops.Split",), lambda x: x.chunk(2, 1), TWO[:-1], ours=made(1, 2)),
    judged(("ops.SplitWithSize",), lambda x, s, d: x.split(list(s), d), TWO[:-1], ((1, 3), 1)),
    judged(("ops.SplitTensor",), lambda x, s, d: x.split(s, d), TWO, (3, 1), (2, -1)),
    judged(("ops.Unstack",), lambda x: x.unbind(1), TWO, ours=made(1)),
]


def _gathered(x: Any, places: Any, axis: int) -> Any:
    """A dimension for every one of `places` where that of `axis` was."""
    dim = axis % x.dim()
    rows = x.index_select(dim, places.reshape(-1).long())
    return rows.reshape(*x.shape[:dim], *places.shape, *x.shape[dim + 1 :])


PLACES = np.array([[2, 0], [1, 1]], np.int32)
CHOSEN = [
    judged(
        everywhere("gather", "Gather SparseGatherV2", "mint.gather"),
        _gathered,
        [[drawn(3, 3, 3), PLACES], [drawn(3, 4, 3, dtype="int32"), PLACES.astype(np.int64)]],
        (0,),
        (2,),
        (-1,),
    ),
    judged(
        ("mint.gather", "ops.GatherD"),
        lambda x, i: torch.gather(x, 1, i.long()),
        [[drawn(2, 4), PLACES]],
        ours=lambda f, x, i: f(x, 1, i),
    ),
    judged(
        ("mint.gather",),
        lambda x, i: torch.gather(x, 1, i.long()),
        [[drawn(3, 4), PLACES], [drawn(4, 5, dtype="int32"), PLACES]],
        ours=lambda f, x, i: f(x, 1, i),
    ),
    judged(
        everywhere("index_select", "IndexSelect"),
        lambda x, i: x.index_select(1, i.long()),
        [[drawn(2, 4), np.array([3, 0, 0], np.int32)]],
        ours=lambda f, x, i: f(x, 1, i),
    ),
    judged(("ops.Embedding",), lambda i, w: torch.nn.functional.embedding(i, w), [[PLACES, drawn(4, 3)]]),
    judged(("ops.GatherNd",), lambda x, i: x[i[..., 0].long(), i[..., 1].long()], [[drawn(3, 4, 2), PLACES]]),
    judged(everywhere("narrow"), torch.narrow, TWO[:-2], (0, 1, 2), (1, 0, 3), (-1, 2, 2)),
    judged(
        ("ops.strided_slice", "ops.StridedSlice"),
        lambda x, b, e, s: x[b[0] : e[0] : s[0], b[1] : e[1] : s[1]],
        TWO[:-2],
        ((0, 1), (3, 4), (2, 2)),
        ((1, 0), (2, 4), (1, 3)),
    ),
    judged(
        ("ops.slice", "ops.Slice"),
        lambda x, b, s: x[b[0] : b[0] + s[0], b[1] : b[1] + s[1]],
        TWO[:-2],
        ((0, 1), (2, 3)),
    ),
    judged(
        ("ops.one_hot", "ops.OneHot"),
        lambda i, n, on, off: torch.where(torch.nn.functional.one_hot(i.long(), n) > 0, on, off),
        [[PLACES]],
        (4, 1.0, 0.0),
        (4, 2.0, -1.0),
    ),
    judged(("ops.one_hot",), lambda i, n: torch.nn.functional.one_hot(i.long(), n), [[PLACES]], (4,)),
]


def _looked_up(table: Any, ids: Any, offset: int) -> Any:
    places = ids.long() - offset
    inside = (places >= 0) & (places < table.shape[0])
    return table[places.clamp(0, table.shape[0] - 1)] * inside.unsqueeze(-1)


def _segments(reduce: str, empty: float) -> Callable[..., Any]:
    def judge(x: Any, ids: Any, count: int) -> Any:
        inside = ids >= 0
        out = torch.full((count, *x.shape[1:]), empty, dtype=x.dtype)
        index = ids[inside].long().unsqueeze(-1).expand(-1, x.shape[1])
        return out.scatter_reduce(0, index, x[inside], reduce, include_self=True)

    return judge


def _scattered(reduce: str | None) -> Callable[..., Any]:
    def judge(x: Any, indices: Any, updates: Any) -> Any:
        index = indices.long().expand(-1, x.shape[1])
        if reduce is None:
            return x.scatter(0, index, updates)
        return x.scatter_reduce(0, index, updates, reduce)

    return judge


def _scatter_names(name: str) -> tuple[str, ...]:
    return f"ops.TensorScatter{name.title()}", f"ops.tensor_scatter_{name}", f"Tensor.scatter_{name}"


_ROWS = [[drawn(5, 3), np.array([[4], [0], [2]], np.int32), drawn(3, 3)]]
_TWICE = [*_ROWS, [drawn(5, 3), np.array([[1], [1], [2]], np.int32), drawn(3, 3)]]
_IDS = [[drawn(5, 3), np.array([0, 2, 2, 0, 3], np.int32)], [np.zeros((5, 3)), np.array([0, 2, -1, 0, 3], np.int32)]]
SCATTERED = [
    judged(
        ("ops.EmbeddingLookup",), _looked_up, [[drawn(4, 3), np.array([[0, 2, 5], [3, 4, 9]], np.int32)]], (0,), (2,)
    ),
    judged(("ops.UnsortedSegmentSum", "ops.unsorted_segment_sum"), _segments("sum", 0.0), _IDS, (4,), (6,)),
    judged(("ops.TensorScatterUpdate", "ops.tensor_scatter_update"), _scattered(None), _ROWS),
    judged(("ops.TensorScatterAdd", "ops.tensor_scatter_add"), _scattered("sum"), _TWICE),
    judged(_scatter_names("sub"), lambda x, i, u: _scattered("sum")(x, i, -u), _TWICE),
    *(
        judged(_scatter_names(name), judge, _TWICE, gradient=False)
        for name, judge in {
            "mul": _scattered("prod"), "div": lambda x, i, u: _scattered("prod")(x, i, 1 / u),
            "max": _scattered("amax"), "min": _scattered("amin"),
        }.items()
    ),
    judged(
        ("ops.ScatterNd", "ops.scatter_nd"),
        lambda i, u, s: torch.zeros(s, dtype=u.dtype).index_add(0, i[:, 0].long(), u),
        [[_TWICE[1][1], drawn(3, 3)]],
        ((5, 3),),
    ),
]


def _filled(dtype: Any) -> Any:
    return lambda *arguments: torch.full(*arguments, dtype=dtype)


MADE = [
    judged(
        ("ops.full", "mint.full"),
        lambda shape, value: torch.full(shape, value),
        [[]],
        ((2, 3), 7),
        ((2,), 1.5),
        ((), True),
        ((0, 2), 3),
    ),
    judged(("ops.zeros", "mint.zeros"), torch.zeros, [[]], ((2, 3),), ((0,),)),
    judged(("ops.ones", "mint.ones"), torch.ones, [[]], ((2, 3),), ((0,),)),
    judged(("ops.full_like", "mint.full_like"), torch.full_like, ANY, (1,)),
    judged(everywhere("zeros_like", "ZerosLike"), torch.zeros_like, ANY),
    judged(everywhere("ones_like", "OnesLike"), torch.ones_like, ANY),
    judged(
        ("ops.arange", "mint.arange"), torch.arange, [[]], (5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.0, 2.0, 0.5), (2.5,)
    ),
    judged(("ops.eye",), lambda n, m=None: torch.eye(n, n if m is None else m), [[]], (3,), (2, 4)),
    judged(("mint.eye",), lambda n, m=None: torch.eye(n, n if m is None else m), [[]], (3,), (2, 4)),
    judged(("ops.scalar_to_array", "ops.scalar_to_tensor"), lambda x: torch.tensor(x), [[]], (3,), (1.5,), (True,)),
    judged(("ops.LinSpace",), torch.linspace, [[]], (1.0, 4.0, 7), (2.0, -2.0, 4), (3.0, 5.0, 1)),
]
TORCH_TYPES = {
    "float": torch.float32,
    "int": torch.int32,
    "long": torch.int64,
    "half": torch.float16,
    "bool": torch.bool,
}
TYPED = [
    *(judged((f"Tensor.{name}",), lambda x, kind=kind: x.to(kind), TWO) for name, kind in TORCH_TYPES.items()),
    judged(
        ("Tensor.astype", "Tensor.to", "ops.cast", "ops.Cast"),
        lambda x, kind: x.to(getattr(torch, str(kind))),
        TWO,
        *[(k,) for k in ("float16", "float32", "float64", "int32", "bool")],
        ours=lambda f, x, kind: f(x, kind),
    ),
    judged(("Tensor.type_as",), lambda x, y: x.to(y.dtype), [[drawn(3), drawn(2, dtype=kind)] for kind in TYPES]),
    judged(("Tensor.copy", "Tensor.clone", "Tensor.contiguous"), lambda x: x.clone(), ANY),
    judged(("Tensor.dim", "Tensor.ndimension", "ops.rank"), lambda x: x.dim(), ANY),
    judged(("Tensor.numel", "ops.size"), lambda x: x.numel(), ANY),
    judged(("Tensor.is_floating_point",), lambda x: x.is_floating_point(), ANY),
    judged(("ops.shape",), lambda x: tuple(x.shape), ANY),
]
JUDGES = [judge for judge in [*MOVED, *REPEATED, *JOINED, *CHOSEN, *SCATTERED, *MADE, *TYPED] if judge.inputs]

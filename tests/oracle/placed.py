"""Judges of what puts elements at places, cuts tensors and puts them side by side."""

from typing import Any

import numpy as np

from mspc import Tensor
from tests.oracle.inputs import drawn
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

_PLACES = np.array([[2, 0, 1, 1], [1, 1, 0, 2]])
_SPREAD = [[drawn(3, 4), _PLACES, drawn(2, 4)], [drawn(3, 4, dtype="int32"), _PLACES, drawn(2, 4, dtype="int32")]]
_APART = [[drawn(3, 4), np.array([[0, 2, 1, 1], [1, 0, 0, 2]]), drawn(2, 4)]]
_MANY = [[drawn(5, 4)], [drawn(7)], [drawn(2, 6, 4)]]
_CUT = [(2,), (3,), ([1, 3],), ((2,),)]
ROWS = np.array([2, 0])


def _at(function: Any, x: Any, index: Any, source: Any) -> Any:
    return function(x, 0, index, source)


def _joined(function: Any, *arrays: Any) -> Any:
    return function(arrays)


SCATTERED = [
    Judge(everywhere("scatter"), lambda x, i, s: x.scatter(0, i, s), _APART, ours=_at),
    Judge(
        everywhere("scatter"),
        lambda x, i: x.scatter(0, i, 2.5),
        [case[:2] for case in _APART],
        ours=lambda f, x, i: f(x, 0, i, 2.5),
    ),
    Judge(("mint.scatter_add", "Tensor.scatter_add"), lambda x, i, s: x.scatter_add(0, i, s), _SPREAD, ours=_at),
    Judge(
        ("ops.tensor_scatter_elements",),
        lambda x, i, s: x.scatter_add(0, i, s),
        _SPREAD,
        ours=lambda f, x, i, s: f(x, i, s, 0, "add"),
    ),
    Judge(
        ("ops.tensor_scatter_elements",), lambda x, i, s: x.scatter(0, i, s), _APART, ours=lambda f, x, i, s: f(x, i, s)
    ),
    Judge(
        everywhere("index_fill"),
        lambda x, i, d: x.index_fill(d, i, 2.5),
        [[drawn(4, 4), ROWS], [drawn(4, 4, 5), ROWS]],
        arguments=[(0,), (1,)],
        ours=lambda f, x, i, d: f(x, d, i, 2.5),
    ),
    Judge(
        ("ops.index_add",),
        lambda x, i, y: x.index_add(1, i, y),
        [[drawn(3, 4), ROWS, drawn(3, 2)]],
        ours=lambda f, x, i, y: f(x, i, y, 1),
    ),
    Judge(
        ("mint.index_add", "Tensor.index_add"),
        lambda x, i, y: x.index_add(1, i, y, alpha=2),
        [[drawn(3, 4), ROWS, drawn(3, 2)]],
        ours=lambda f, x, i, y: f(x, 1, i, y, alpha=2),
    ),
    Judge(
        ("Tensor.index_put",),
        lambda x, y, add: x.index_put((torch.tensor([0, 2]), torch.tensor([1, 1])), y, add),
        [[drawn(3, 4), drawn(2)]],
        arguments=[(False,), (True,)],
        ours=lambda f, x, y, add: f(x, (_tensor([0, 2]), _tensor([1, 1])), y, add),
    ),
    Judge(
        ("Tensor.masked_scatter",),
        lambda x, m, y: x.masked_scatter(m, y),
        [[drawn(3, 4), drawn(3, 4, dtype="bool"), drawn(12)]],
        gradient=False,
    ),
    Judge(
        ("Tensor.fill_diagonal",),
        lambda x, *a: x.clone().fill_diagonal_(*a),
        [[drawn(3, 4)], [drawn(7, 2)], [drawn(2, 2, 2)]],
        arguments=[(5.0,), (5.0, True)],
    ),
    Judge(("ops.take", "mint.take"), torch.take, [[drawn(3, 4), np.array([[0, -1], [5, 5]])]]),
    Judge(
        ("Tensor.take",),
        lambda x, i: torch.tensor(np.take(x.detach().numpy(), i.numpy(), mode="clip")),
        [[drawn(3, 4), np.array([[0, -1], [5, 50]])]],
        gradient=False,
    ),
    Judge(
        ("Tensor.take",),
        lambda x, i: torch.tensor(np.take(x.detach().numpy(), i.numpy(), 1, mode="wrap")),
        [[drawn(3, 4), np.array([0, -1, 9])]],
        gradient=False,
        ours=lambda f, x, i: f(x, i, 1, "wrap"),
    ),
    Judge(
        ("Tensor.choose",),
        lambda i, x, y: torch.tensor(np.choose(i.numpy(), [x.numpy(), y.numpy()], mode="clip")),
        [[np.array([[0, 1, 7], [1, -1, 0]]), drawn(3), drawn(2, 3)]],
        gradient=False,
        ours=lambda f, i, x, y: f(i, (x, y)),
    ),
    Judge(
        ("Tensor.where",), lambda x, c, y: torch.where(c, x, y), [[drawn(3, 4), drawn(3, 4, dtype="bool"), drawn(4)]]
    ),
    Judge(everywhere("reverse"), lambda x, d: x.flip(d), _MANY, arguments=[((0,),)]),
    Judge(
        everywhere("reverse_sequence"),
        lambda x, n: torch.stack([torch.cat((r[: int(k)].flip(0), r[int(k) :])) for r, k in zip(x, n, strict=True)]),
        [[drawn(3, 5), np.array([0, 3, 5])], [drawn(2, 4, 3), np.array([2, 4])]],
        ours=lambda f, x, n: f(x, n, 1),
    ),
    Judge(("Tensor.rot90",), torch.rot90, [[drawn(3, 4)]], arguments=[(1, (0, 1)), (-1, (0, 1))]),
    Judge(("Tensor.fold",), torch.nn.functional.fold, [[drawn(1, 8, 4)]], arguments=[((3, 3), 2)]),
    Judge(("Tensor.trace",), torch.trace, [[drawn(3, 4)]], loose=4),
    Judge(
        ("Tensor.trace",),
        lambda x: torch.diagonal(x, 1, 0, 2).sum(-1),
        [[drawn(3, 2, 4)]],
        loose=4,
        ours=lambda f, x: f(x, 1, 0, 2),
    ),
]
SHAPED = [
    Judge(everywhere("tensor_split"), lambda x, n: torch.tensor_split(x, n), _MANY, arguments=_CUT),
    Judge(
        everywhere("tensor_split"),
        lambda x, n: torch.tensor_split(x, n, -1),
        _MANY,
        arguments=_CUT,
        ours=lambda f, x, n: f(x, n, -1),
    ),
    Judge(("ops.tril_indices",), torch.tril_indices, [[]], arguments=[(3, 4), (3, 2, 1), (2, 4, -1)]),
    Judge(("ops.triu_indices",), torch.triu_indices, [[]], arguments=[(3, 4), (3, 2, 1), (2, 4, -1)]),
    Judge(
        ("ops.matrix_band_part",),
        lambda x, low, high: x.triu(-low if low >= 0 else -9).tril(high if high >= 0 else 9),
        [[drawn(3, 4)], [drawn(2, 4, 3)]],
        arguments=[(1, 0), (-1, 1), (0, -1)],
    ),
    Judge(
        ("Tensor.sum_to_size",),
        lambda x, size: x.sum_to_size(size),
        [[drawn(2, 3, 4)]],
        arguments=[((3, 4),), ((2, 1, 4),), ((1,),)],
        loose=8,
    ),
    Judge(
        ("Tensor.resize",),
        lambda x, *n: torch.tensor(np.resize(np.append(x.detach().numpy(), np.zeros(90)), n)),
        [[drawn(3, 4)]],
        arguments=[(2, 3), (4, 5)],
        gradient=False,
    ),
    Judge(("Tensor.double",), lambda x: x.double(), [[drawn(3, dtype="int32")], [drawn(3)]]),
    Judge(("Tensor.short",), lambda x: x.short(), [[drawn(3)]]),
    Judge(("Tensor.byte",), lambda x: x.byte(), [[drawn(3, low=0)]]),
    Judge(("Tensor.bfloat16",), lambda x: x.bfloat16(), [[drawn(3)]], gradient=False),
    Judge(
        ("Tensor.is_signed",),
        lambda x: x.is_signed(),
        [[drawn(3, dtype=kind)] for kind in ("bool", "uint8", "int8", "float32")],
    ),
    Judge(("Tensor.is_contiguous",), lambda x: x.is_contiguous(), [[drawn(3)]]),
    Judge(
        ("Tensor.new_zeros", "Tensor.new_empty"),
        lambda x, n: x.new_zeros(n),
        [[drawn(3, dtype="int32")]],
        arguments=[((2, 3),)],
    ),
    Judge(("Tensor.new_ones",), lambda x, n: x.new_ones(n), [[drawn(3, dtype="int32")]], arguments=[((2, 3),)]),
    Judge(("Tensor.new_full",), lambda x, n, v: x.new_full(n, v), [[drawn(3, dtype="int32")]], arguments=[((2, 3), 7)]),
    Judge(
        ("Tensor.argmax_with_value",),
        lambda x, *a: tuple(x.max(*(a or (0,)))),
        [[drawn(3, 4)]],
        arguments=[(), (1,), (1, True)],
    ),
    Judge(
        ("Tensor.argmin_with_value",),
        lambda x, *a: tuple(x.min(*(a or (0,)))),
        [[drawn(3, 4)]],
        arguments=[(), (1,), (1, True)],
    ),
    Judge(("Tensor.max",), lambda x, *a: tuple(x.max(*a)), [[drawn(3, 4)]], arguments=[(1,), (0, True)]),
    Judge(("Tensor.min",), lambda x, *a: tuple(x.min(*a)), [[drawn(3, 4)]], arguments=[(1,), (0, True)]),
    Judge(("Tensor.transpose",), torch.transpose, [[drawn(2, 3, 4)], [drawn(2, 3)]], arguments=[(0, 1), (-1, 0)]),
    Judge(
        ("Tensor.gather",),
        lambda x, i: x.gather(1, i),
        [[drawn(3, 4), np.array([[0], [3], [1]])]],
        ours=lambda f, x, i: f(x, 1, i),
    ),
    Judge(("mint.clone",), torch.clone, [[drawn(3, 4)]]),
]


def _tensor(values: Any) -> Any:
    return Tensor(np.array(values))


JUDGES = [*SCATTERED, *SHAPED]

"""Rare functions of NumPy and SciPy as rows of one table: special functions, decompositions, histograms, pooling.

A row is a NumPy function of the operands and the settings, the types of its results, and a NumPy function for its
gradients. Elementwise rows are sharded like any elementwise operator; the other rows need whole operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    DType,
    TensorType,
    TupleType,
    Type,
    complex_of,
    dtype_of,
    real_of,
)
from mspc.ops.bases import promoted
from mspc.ops.control.structural import items
from mspc.ops.cpu.special_functions import scipy_module
from mspc.ops.op import Gradients, NotDifferentiable, Op, Sample, sample
from mspc.ops.operator_arguments import require_elements
from mspc.ops.tensor.reshape import zeros
from mspc.sharding.rules import broadcast_rule, sized

Array = Any
ResultTypes = Sequence[tuple[DType, tuple[int, ...]]]


@dataclass(frozen=True)
class LibraryRow:
    """One function. run: returns an array or a tuple of arrays, for (operands, settings). types: result types, for
    (types of operands, settings); None for an elementwise function. gradients: returns the gradient of each operand or
    None, for (operands, results, gradients of results, settings). is_counted: the operands' values determine the shapes
    of the results, which must be the given ones. rule: sharding rule, for (types of operands, settings); None if
    operands cannot be sharded."""

    run: Callable[..., Any]
    types: Callable[..., ResultTypes] | None = None
    gradients: Callable[..., Sequence[Any]] | None = None
    samples: tuple[Sample, ...] = ()
    is_counted: bool = False
    rule: Callable[..., str] | None = None


class LibraryFunction(Op):
    """A function of the table in `ops/math/library.py`, by its name. Called as `LibraryFunction(name, settings)(x)`."""

    function: str = "logaddexp2"
    options: tuple[Any, ...] = ()
    runs_on_host = True
    takes_complex = True
    table: ClassVar[Mapping[str, LibraryRow]]

    @property
    def row(self) -> LibraryRow:
        """Return the row. Raise MspcError if there is none."""
        if self.function not in self.table:
            raise MspcError(f"{self.name}: there is no function {self.function!r:.60}")
        return self.table[self.function]

    def rule(self, *types: TensorType) -> str:
        if self.row.rule is not None:
            return self.row.rule(*types, *self.options)
        if self.row.types is None:
            return broadcast_rule(tuple(type.shape for type in types))
        return whole_rule(types, [shape for _, shape in self.row.types(*types, *self.options)])

    def infer(self, *types: TensorType) -> Type:
        if self.row.types is None:
            dtype = types[0].dtype
            for each in types[1:]:
                dtype = promoted(dtype, each.dtype)
            return TensorType(dtype, np.broadcast_shapes(*(type.shape for type in types)))
        found = tuple(TensorType(*each) for each in self.row.types(*types, *self.options))
        return found[0] if len(found) == 1 else TupleType(found)

    def bprop(self, b: Builder, *given: Any) -> Gradients:
        *inputs, out, dout = given
        if not any(math.prod(x.shape) for x in inputs):
            return [None] * len(inputs)
        if self.row.gradients is None:
            raise MspcError(f"{self.name}: {self.function} has no gradient")
        single = isinstance(out.type, TensorType)
        outs = [out] if single else list(items(b, out, len(out.type.elements)))
        douts = [dout] if single else list(dout)
        douts = [zeros(b, o.tensor_type) if d is None else d for o, d in zip(outs, douts, strict=True)]
        dtypes = [x.tensor_type.dtype for x in inputs]
        trained = tuple(i for i, dtype in enumerate(dtypes) if dtype.is_float or dtype.is_complex)
        op = LibraryGradient(self.function, self.options, len(inputs), trained)
        found = b.emit(op, *inputs, *outs, *douts)
        parts = [found] if len(trained) == 1 else list(items(b, found, len(trained)))
        return [parts[trained.index(i)] if i in trained else None for i in range(len(inputs))]

    def compute(self, xp: Any, *inputs: Any) -> Any:
        types: Any = self.infer(*(TensorType(dtype_of(x.dtype), x.shape) for x in inputs))
        made = [types] if isinstance(types, TensorType) else types.elements
        if not self.row.is_counted and not any(math.prod(type.shape) for type in made):
            found: Any = [np.zeros(type.shape) for type in made]
        else:
            found = self._computed(inputs)
            found = (found,) if isinstance(types, TensorType) else found
        if self.row.is_counted:
            self._check_counted(found, made)
        exact = tuple(_exact(each, type) for each, type in zip(found, made, strict=True))
        # Functions that return views, as those that keep the bits: the memory of an operand is used again.
        exact = tuple(each.copy() if any(np.may_share_memory(each, x) for x in inputs) else each for each in exact)
        return exact[0] if isinstance(types, TensorType) else exact

    def _check_counted(self, found: Sequence[Array], types: Sequence[Any]) -> None:
        """Raise MspcError if the operands' values give other shapes than the compiled ones."""
        for value, type in zip(found, types, strict=True):
            if np.shape(value) != type.shape:
                raise MspcError(
                    f"{self.name}: these numbers give a result of shape {np.shape(value)}; the program is compiled "
                    f"for {type.shape}", notes=["export it with numbers that give the shape that it should have"],
                )  # fmt: skip

    def _computed(self, inputs: Sequence[Array]) -> Any:
        """Return the results. Raise MspcError if NumPy or SciPy refuses the operands."""
        try:
            with np.errstate(all="ignore"):
                return self.row.run(*inputs, *self.options)
        except (ValueError, IndexError) as error:
            raise MspcError(f"{self.name}: {self.function}: {error}", kind=ValueError) from None


class LibraryGradient(Op):
    """The gradients of a `LibraryFunction` in its operands `trained`. Operands: its own, its results, and their
    gradients."""

    function: str = ""
    options: tuple[Any, ...] = ()
    count: int = 1
    trained: tuple[int, ...] = (0,)
    runs_on_host = True
    takes_complex = True
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((3, 4), (3, 4), (3, 4), function="erfcx", gradient=False),)

    def rule(self, *types: TensorType) -> str:
        return whole_rule(types, [types[i].shape for i in self.trained])

    def infer(self, *types: TensorType) -> Type:
        found = tuple(types[i] for i in self.trained)
        return found[0] if len(found) == 1 else TupleType(found)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        results = (len(inputs) - self.count) // 2
        own, outs, douts = inputs[: self.count], inputs[self.count : self.count + results], inputs[-results:]
        gradients = FUNCTIONS[self.function].gradients
        assert gradients is not None, "LibraryFunction has checked it"
        with np.errstate(all="ignore"):
            found = gradients(own, outs, douts, *self.options)
        made = tuple(_fitted(found[i], own[i]) for i in self.trained)
        return made[0] if len(made) == 1 else made


def _fitted(gradient: Array, operand: Array) -> Array:
    """Return a gradient summed to the shape of its operand; zeros for None."""
    if gradient is None:
        return np.zeros_like(operand)
    gradient = np.asarray(gradient)
    ahead = gradient.ndim - operand.ndim
    gradient = gradient.sum(tuple(range(ahead))) if ahead > 0 else gradient
    alone = tuple(d for d, n in enumerate(operand.shape) if n == 1 and gradient.shape[d] != 1)
    gradient = gradient.sum(alone, keepdims=True) if alone else gradient
    return np.ascontiguousarray(gradient, operand.dtype).reshape(operand.shape)


def _exact(value: Array, type: TensorType) -> Array:
    """Return a contiguous array of the result's type. Raise MspcError if it has another shape."""
    made = np.ascontiguousarray(value, type.dtype.numpy).reshape(np.shape(value))
    if made.shape != type.shape:
        raise MspcError(f"the result has shape {made.shape}, not {type.shape}")
    return made


def whole_rule(types: Sequence[TensorType], shapes: Sequence[Sequence[int]]) -> str:
    """Return the rule of an operator that shards no dimension."""
    return shared_rule(types, shapes, [[-1] * type.rank for type in types], [[-1] * len(shape) for shape in shapes])


def shared_rule(types: Sequence[TensorType], outs: Sequence[Sequence[int]], axes: Sequence[Sequence[int]],
                out_axes: Sequence[Sequence[int]]) -> str:  # fmt: skip
    """Return the rule of a function that is independent along some dimensions. axes: for each operand, the number of
    each dimension among the independent ones, -1 for others. out_axes: the same for each result."""

    def side(letter: str, number: int, shape: Sequence[int], own: Sequence[int]) -> str:
        names = [f"s{axis}" if axis >= 0 else sized(f"{letter}{number}x{d}", n)
                 for d, (n, axis) in enumerate(zip(shape, own, strict=True))]  # fmt: skip
        return " ".join(name if axis >= 0 or name == "1" else f"{name}!"
                        for name, axis in zip(names, own, strict=True))  # fmt: skip

    left = ", ".join(side("a", i, type.shape, own) for i, (type, own) in enumerate(zip(types, axes, strict=True)))
    right = (side("y", i, shape, own) for i, (shape, own) in enumerate(zip(outs, out_axes, strict=True)))
    return f"{left} -> {', '.join(right)}"


# Types of results.


def same_type(x: TensorType, *_: Any) -> ResultTypes:
    return ((x.dtype, x.shape),)


# Special functions.


def special(name: str, derivative: Callable[..., Any] | None = None) -> LibraryRow:
    """Return the row of an elementwise function of `scipy.special`."""

    def run(*operands: Array) -> Array:
        dtype = np.result_type(*operands)
        wide = [x.astype(np.float64) for x in operands]
        return np.asarray(getattr(scipy_module("special"), name)(*wide)).astype(dtype)

    return of_numpy(run, derivative)


def of_numpy(function: Callable[..., Any], derivative: Callable[..., Any] | None = None) -> LibraryRow:
    """Return the row of an elementwise function of arrays."""
    if derivative is None:
        return LibraryRow(function)
    return LibraryRow(function, None, lambda own, outs, douts: derivative(douts[0], *own))


def _incomplete(sign: int) -> Callable[..., Any]:
    """Return the gradients of an incomplete gamma function in x: that in a is not known in closed form."""
    def gradients(d: Array, a: Array, x: Array) -> Sequence[Any]:
        gammaln = scipy_module("special").gammaln
        return None, sign * d * np.exp(-x + (a - 1) * np.log(x) - gammaln(a))

    return gradients


def polynomial(first: Callable[[Array], Array], following: Callable[..., Array], shifted: bool = False) -> LibraryRow:
    """Return the row of orthogonal polynomials of degrees n: `first` is that of degree 1, and `following(k, x, p, q)`
    the one after q of degree k and p before it. Degrees below 0 give 0."""

    def run(x: Array, n: Array) -> Array:
        x, n = np.broadcast_arrays(x, n)
        dtype = np.result_type(x, n)
        wide, degrees = x.astype(np.float64), np.trunc(n).astype(np.int64)
        wide = 2 * wide - 1 if shifted else wide
        before, last = np.ones_like(wide), first(wide)
        found = np.where(degrees == 0, before, np.where(degrees == 1, last, 0.0))
        for k in range(1, int(degrees.max(initial=0))):
            before, last = last, following(k, wide, before, last)
            found = np.where(degrees == k + 1, last, found)
        return found.astype(dtype)

    return LibraryRow(run)


CHEBYSHEV: dict[str, Callable[[Array], Array]] = {
    "t": lambda x: x, "u": lambda x: 2 * x, "v": lambda x: 2 * x - 1, "w": lambda x: 2 * x + 1,
}  # fmt: skip
"""The polynomials of degree 1."""

SPECIAL = {
    **{name: special(own) for name, own in (
        ("bessel_j0", "j0"), ("bessel_j1", "j1"), ("bessel_y0", "y0"), ("bessel_y1", "y1"),
        ("modified_bessel_i0", "i0"), ("modified_bessel_i1", "i1"), ("modified_bessel_k0", "k0"),
        ("modified_bessel_k1", "k1"), ("scaled_modified_bessel_k0", "k0e"), ("scaled_modified_bessel_k1", "k1e"))},
    "spherical_bessel_j0": of_numpy(lambda x: np.where(x == 0, 1, np.sin(x) / np.where(x == 0, 1, x)).astype(x.dtype)),
    "airy_ai": of_numpy(lambda x: scipy_module("special").airy(x.astype(np.float64))[0].astype(x.dtype)),
    "erfcx": special("erfcx", lambda d, x: [d * (2 * x * scipy_module("special").erfcx(x) - 2 / math.sqrt(math.pi))]),
    "log_ndtr": special(
        "log_ndtr", lambda d, x: [d * math.sqrt(2 / math.pi) / scipy_module("special").erfcx(-x / math.sqrt(2))]),
    "zeta": special("zeta", lambda d, x, q: (None, -x * d * scipy_module("special").zeta(x + 1, q))),
    "igamma": special("gammainc", _incomplete(1)),
    "igammac": special("gammaincc", _incomplete(-1)),
    "gcd": of_numpy(np.gcd), "lcm": of_numpy(np.lcm),
    "nextafter": of_numpy(np.nextafter, lambda d, x, y: (d, None)),
    **{f"{shift}chebyshev_polynomial_{kind}": polynomial(first, lambda k, x, p, q: 2 * x * q - p, bool(shift))
       for shift in ("", "shifted_") for kind, first in CHEBYSHEV.items()},
    "hermite_polynomial_h": polynomial(lambda x: 2 * x, lambda k, x, p, q: 2 * x * q - 2 * k * p),
    "hermite_polynomial_he": polynomial(lambda x: x, lambda k, x, p, q: x * q - k * p),
    "laguerre_polynomial_l": polynomial(lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
    "legendre_polynomial_p": polynomial(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) / (k + 1)),
    "frexp": LibraryRow(np.frexp, lambda x: ((x.dtype, x.shape), (INT32, x.shape)),
                        lambda own, outs, douts: [np.ldexp(douts[0], -outs[1])]),
}  # fmt: skip
"""Elementwise functions."""


# Complex numbers.


def of_complex(function: Callable[..., Any], derivative: Callable[..., Any]) -> LibraryRow:
    """Return the row of an analytic function of complex numbers. derivative: of (operand, result)."""
    return LibraryRow(function, None, lambda own, outs, douts: [douts[0] * np.conj(derivative(*own, *outs))])


def power_gradients(own: Any, outs: Any, douts: Any) -> Any:
    (x, w), y, d = own, outs[0], douts[0]
    return [d * np.conj(w * np.power(x, w - 1)), d * np.conj(np.where(y == 0, 0, y * np.log(x)))]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


COMPLEX = {f"complex_{name}": of_complex(function, derivative) for name, function, derivative in (
    ("exp", np.exp, lambda x, y: y), ("log", np.log, lambda x, y: 1 / x), ("sqrt", np.sqrt, lambda x, y: 0.5 / y),
    ("sin", np.sin, lambda x, y: np.cos(x)), ("cos", np.cos, lambda x, y: -np.sin(x)),
    ("tan", np.tan, lambda x, y: 1 + y * y), ("sinh", np.sinh, lambda x, y: np.cosh(x)),
    ("cosh", np.cosh, lambda x, y: np.sinh(x)), ("tanh", np.tanh, lambda x, y: 1 - y * y),
    ("asin", np.arcsin, lambda x, y: 1 / np.sqrt(1 - x * x)), ("acos", np.arccos, lambda x, y: -1 / np.sqrt(1 - x * x)),
    ("atan", np.arctan, lambda x, y: 1 / (1 + x * x)), ("asinh", np.arcsinh, lambda x, y: 1 / np.sqrt(1 + x * x)),
    ("acosh", np.arccosh, lambda x, y: 1 / (np.sqrt(x - 1) * np.sqrt(x + 1))),
    ("atanh", np.arctanh, lambda x, y: 1 / (1 - x * x)), ("expm1", np.expm1, lambda x, y: y + 1),
    ("log1p", np.log1p, lambda x, y: 1 / (1 + x)), ("log2", np.log2, lambda x, y: 1 / (x * math.log(2))),
    ("log10", np.log10, lambda x, y: 1 / (x * math.log(10))), ("exp2", np.exp2, lambda x, y: y * math.log(2)),
    ("sigmoid", _sigmoid, lambda x, y: y * (1 - y)), ("reciprocal", np.reciprocal, lambda x, y: -y * y),
    ("rsqrt", lambda x: 1 / np.sqrt(x), lambda x, y: -0.5 * y / x), ("square", np.square, lambda x, y: 2 * x),
    ("silu", lambda x: x * _sigmoid(x), lambda x, y: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    ("sinc", np.sinc, lambda x, y: np.where(x == 0, 0, (np.cos(np.pi * x) - y) / np.where(x == 0, 1, x))),
)}  # fmt: skip
COMPLEX |= {
    "complex_pow": LibraryRow(np.power, None, power_gradients),
    "complex_inverse": LibraryRow(np.linalg.inv, same_type, lambda own, outs, douts: [
        -turned(outs[0]) @ douts[0] @ turned(outs[0])]),
    "complex_det": LibraryRow(np.linalg.det, lambda x: ((x.dtype, x.shape[:-2]),), lambda own, outs, douts: [
        (douts[0] * np.conj(outs[0]))[..., None, None] * turned(np.linalg.inv(own[0]))]),
    "complex_slogdet": LibraryRow(lambda x: tuple(np.linalg.slogdet(x)), lambda x: (
        (x.dtype, x.shape[:-2]), (real_of(x.dtype), x.shape[:-2]))),
    "complex_cholesky": LibraryRow(np.linalg.cholesky, same_type),
    "complex_prod": LibraryRow(lambda x, dim: x.prod(dim, keepdims=True), lambda x, dim: (
        (x.dtype, tuple(1 if d == dim else n for d, n in enumerate(x.shape))),)),
    "complex_cumprod": LibraryRow(lambda x, dim: x.cumprod(dim), same_type),
}  # fmt: skip
"""Functions of complex numbers."""


# Linear algebra.


def turned(x: Array) -> Array:
    """Return the conjugate transposes of matrices."""
    return np.conj(x.swapaxes(-1, -2))


def map_matrices(function: Callable[..., Any], count: int, x: Array) -> tuple[Array, ...]:
    """Return the `count` results of a function of one matrix, applied to every matrix of a batch."""
    batch = x.shape[:-2]
    found = [function(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]
    found = found or [tuple(each[None][:0] for each in function(np.eye(*x.shape[-2:], dtype=x.dtype)))]
    stacked = [np.stack([each[i] for each in found]) for i in range(count)]
    return tuple(each.reshape(*batch, *each.shape[1:]) if 0 not in batch else np.zeros((*batch, *each.shape[2:]),
                 each.dtype) for each in stacked)  # fmt: skip


def eigh(x: Array, lower: bool) -> tuple[Array, ...]:
    """Return the eigenvalues and eigenvectors of symmetric matrices."""
    return tuple(np.linalg.eigh(x, "L" if lower else "U"))


def eigh_gradients(own: Any, outs: Any, douts: Any, lower: bool) -> Any:
    (values, vectors), (dvalues, dvectors) = outs, douts
    inside = turned(vectors) @ dvectors
    apart = values[..., None, :] - values[..., :, None]
    inner = np.where(apart == 0, 0, (inside - turned(inside)) / 2 / np.where(apart == 0, 1, apart))
    inner = inner + dvalues[..., None, :] * np.eye(values.shape[-1], dtype=values.dtype)
    return [vectors @ inner @ turned(vectors)]


def pinv(x: Array, *rest: Any) -> Array:
    """Return pseudo-inverses, of Hermitian matrices by their lower half. Limits atol and rtol are arrays with one
    number per matrix."""
    *limits, hermitian = rest
    if hermitian:
        lower = np.tril(x, -1)
        x = lower + turned(lower) + np.eye(x.shape[-1]).astype(x.dtype) * x.real
    if 0 in x.shape:
        return np.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    seen = values > _rank_tolerance(x, values, *limits)[..., None]
    inverse = np.where(seen, 1 / np.where(seen, values, 1), 0).astype(values.dtype)
    return turned(right) @ (inverse[..., :, None] * turned(left))


def _rank_tolerance(x: Array, values: Array, *limits: Array) -> Array:
    """Return the singular value up to which values count as 0."""
    atol, rtol = limits or (np.zeros(()), np.asarray(max(x.shape[-2:]) * np.finfo(values.dtype).eps))
    return np.maximum(atol, rtol * values.max(-1, initial=0)).astype(values.dtype)


def pinv_gradients(own: Any, outs: Any, douts: Any, *_: Any) -> Any:
    x, p, d = own[0], outs[0], douts[0]
    pt, dt = turned(p), turned(d)
    first = -pt @ d @ pt
    second = (dt - x @ (p @ dt)) @ p @ pt
    third = pt @ p @ (dt - (dt @ p) @ x)
    return [first + second + third, *[None] * (len(own) - 1)]


def matrix_rank(x: Array, *rest: Any) -> Array:
    """Return the number of singular values above the limits."""
    *limits, hermitian = rest
    if 0 in x.shape:
        return np.zeros(x.shape[:-2], np.int64)
    values = np.abs(np.linalg.eigvalsh(x)) if hermitian else np.linalg.svd(x, compute_uv=False)
    return (values > _rank_tolerance(x, values, *limits)[..., None]).sum(-1)


def matrix_exp(x: Array) -> Array:
    """Return exp of matrices."""
    return scipy_module("linalg").expm(x) if x.size else x


def matrix_exp_gradients(own: Any, outs: Any, douts: Any) -> Any:
    (x,), (d,) = own, douts
    if not x.size:
        return [d]
    across = turned(x)
    block = np.concatenate([np.concatenate([across, d], -1), np.concatenate([np.zeros_like(x), across], -1)], -2)
    return [scipy_module("linalg").expm(block)[..., : x.shape[-1], x.shape[-1] :]]


def lu(x: Array, pivot: bool) -> tuple[Array, Array]:
    """Return (L and U in one matrix, the row, from 1 on, that each row was exchanged with)."""
    packed, (m, n) = np.array(x), x.shape[-2:]
    flat = packed.reshape(-1, m, n)
    rows, few = np.arange(flat.shape[0]), min(m, n)
    pivots = np.zeros((flat.shape[0], few), np.int32)
    for k in range(few):
        sizes = np.abs(flat[:, k:, k].real) + np.abs(flat[:, k:, k].imag)
        best = k + (sizes.argmax(-1) if pivot else 0)
        pivots[:, k] = best + 1
        if pivot:
            flat[rows, k], flat[rows, best] = flat[rows, best], flat[rows, k].copy()
        flat[:, k + 1 :, k] /= flat[:, k, k][:, None]
        flat[:, k + 1 :, k + 1 :] -= flat[:, k + 1 :, k, None] * flat[:, k, None, k + 1 :]
    return flat.reshape(x.shape), pivots.reshape(*x.shape[:-2], few)


def permutation(pivots: Array, rows: int) -> Array:
    """Return the matrices P of exchanges of rows, with P @ L @ U the matrix."""
    flat = pivots.reshape(-1, pivots.shape[-1])
    order = np.tile(np.arange(rows), (flat.shape[0], 1))
    every = np.arange(flat.shape[0])
    for k in range(flat.shape[-1]):
        other = flat[:, k] - 1
        order[every, k], order[every, other] = order[every, other], order[every, k].copy()
    found = np.eye(rows)[order].swapaxes(-1, -2)
    return found.reshape(*pivots.shape[:-1], rows, rows)


def lu_gradients(own: Any, outs: Any, douts: Any, pivot: bool) -> Any:
    (packed, pivots), d = outs, douts[0]
    (m, n), few = packed.shape[-2:], min(packed.shape[-2:])
    one = np.eye(few, dtype=packed.dtype)
    lower = np.tril(packed[..., :few, :few], -1) + one
    upper = np.triu(packed[..., :few, :few])
    dlower, dupper = np.tril(d[..., :few, :few], -1), np.triu(d[..., :few, :few])
    inside, above = turned(lower) @ dlower, dupper @ turned(upper)
    if m > n:
        above = above - turned(packed[..., few:, :]) @ d[..., few:, :]
    if n > m:
        inside = inside - d[..., few:] @ turned(packed[..., few:])
    inner = np.tril(inside, -1) + np.triu(above)
    left = np.linalg.solve(turned(lower), inner)
    found = turned(np.linalg.solve(upper, turned(left)))
    if m > n:
        found = np.concatenate([found, turned(np.linalg.solve(upper, turned(d[..., few:, :])))], -2)
    if n > m:
        found = np.concatenate([found, np.linalg.solve(turned(lower), d[..., few:])], -1)
    return [permutation(pivots, m).astype(packed.dtype) @ found]


def _reflections(x: Array, tau: Array) -> list[tuple[Array, Array]]:
    """Return the vectors below the diagonal, as columns, with their factors."""
    rows = np.arange(x.shape[-2])
    found = []
    for k in range(tau.shape[-1]):
        column = np.where(rows > k, x[..., :, k], 0) + (rows == k)
        found.append((column[..., None].astype(x.dtype), tau[..., k, None, None]))
    return found


def reflected(x: Array, tau: Array, c: Array, forward: bool, adjoint: bool) -> Array:
    """Return the product of reflections, of the first to the last or back, and c."""
    each = _reflections(x, tau)
    for v, t in each if forward else reversed(each):
        c = c - (np.conj(t) if adjoint else t) * v @ (turned(v) @ c)
    return c


def reflected_gradients(own: Any, outs: Any, douts: Any, forward: bool, adjoint: bool) -> Any:
    (x, tau, c), d = own, douts[0]
    each = list(enumerate(_reflections(x, tau)))
    order, states = each if forward else each[::-1], [c]
    for _, (v, t) in order:
        states.append(states[-1] - t * v @ (turned(v) @ states[-1]))
    dx = np.zeros(np.broadcast_shapes(x.shape, (*c.shape[:-2], 1, 1)), x.dtype)
    dtau = np.zeros(np.broadcast_shapes(tau.shape, (*c.shape[:-2], 1)), tau.dtype)
    rows = np.arange(x.shape[-2])
    for (k, (v, t)), state in zip(order[::-1], states[-2::-1], strict=True):
        across, along = turned(v) @ state, turned(v) @ d
        dtau[..., k] = -(across * along).sum((-1, -2))
        dv = -t * (d @ turned(across) + state @ turned(along))
        dx[..., :, k] = np.where(rows > k, dv[..., 0], 0)
        d = d - t * v @ along
    return [dx, dtau, d]


def _ldl(x: Array, hermitian: bool) -> tuple[Array, ...]:
    """Return the factors of symmetric matrices as LAPACK packs them, and pivots."""
    def factor(matrix: Array) -> tuple[Array, Array]:
        packed, pivots, _ = _lapack(matrix, hermitian, "trf")(np.asfortranarray(matrix), lower=1)
        return np.tril(packed), pivots.astype(np.int32)

    return map_matrices(factor, 2, x)


def _few(x: TensorType) -> tuple[int, ...]:
    return (*x.shape[:-2], min(x.shape[-2:]))


def eig_gradients(own: Any, outs: Any, douts: Any) -> Any:
    """Return the gradients of eigenvalues and of vectors of length 1, or of the values alone."""
    values, vectors = outs if len(outs) > 1 else np.linalg.eig(own[0])
    inner = np.zeros_like(vectors)
    if len(douts) > 1:
        inside, one = turned(vectors) @ douts[1], np.eye(values.shape[-1])
        along = turned(vectors) @ vectors * (inside.real * one).sum(-2, keepdims=True)
        apart = np.conj(values[..., None, :] - values[..., :, None])
        inner = np.where(one, 0, (inside - along) / np.where(apart == 0, 1, apart))
    inner = inner + douts[0][..., None, :] * np.eye(values.shape[-1])
    found = np.linalg.solve(turned(vectors), inner @ turned(vectors))
    return [found if own[0].dtype.kind == "c" else found.real]


def _ldl_solve(packed: Array, pivots: Array, right: Array, hermitian: bool) -> Array:
    """Return the solutions for matrices that `_ldl` has factored."""
    batch = np.broadcast_shapes(packed.shape[:-2], right.shape[:-2])
    given = [np.broadcast_to(x, (*batch, *x.shape[x.ndim - k :])).reshape(-1, *x.shape[x.ndim - k :])
             for x, k in ((packed, 2), (pivots, 1), (right, 2))]  # fmt: skip
    if ((pivots == 0) | (np.abs(pivots) > packed.shape[-1])).any():
        raise ValueError(f"pivots must be from 1 to {packed.shape[-1]}, or the same below 0")
    found = [_lapack(m, hermitian, "trs")(m, p, r, lower=1)[0] for m, p, r in zip(*given, strict=True)]
    return np.stack(found).reshape(*batch, *right.shape[-2:])


def _lapack(matrix: Array, hermitian: bool, step: str) -> Any:
    """Return the function of LAPACK for symmetric, or Hermitian, matrices of this element type."""
    letter = {("f", 4): "s", ("f", 8): "d", ("c", 8): "c", ("c", 16): "z"}[matrix.dtype.kind, matrix.dtype.itemsize]
    return getattr(scipy_module("linalg.lapack"), f"{letter}{'he' if hermitian and letter in 'cz' else 'sy'}{step}")


LINEAR = {
    "eigh": LibraryRow(eigh, lambda x, lower: ((real_of(x.dtype), x.shape[:-1]), (x.dtype, x.shape)), eigh_gradients,
                       (sample((3, 3), function="eigh", options=(True,), gradient=False),)),
    "eig": LibraryRow(lambda x: tuple(np.linalg.eig(x)),
                      lambda x: ((complex_of(x.dtype), x.shape[:-1]), (complex_of(x.dtype), x.shape)),
                      eig_gradients),
    "eigvals": LibraryRow(np.linalg.eigvals, lambda x: ((complex_of(x.dtype), x.shape[:-1]),), eig_gradients),
    "svd": LibraryRow(lambda x, full: tuple(np.linalg.svd(x, full)), lambda x, full: (
        (x.dtype, (*x.shape[:-1], x.shape[-2] if full else min(x.shape[-2:]))), (real_of(x.dtype), _few(x)),
        (x.dtype, (*x.shape[:-2], x.shape[-1] if full else min(x.shape[-2:]), x.shape[-1])))),
    "pinv": LibraryRow(pinv, lambda x, *_: ((x.dtype, (*x.shape[:-2], x.shape[-1], x.shape[-2])),), pinv_gradients,
                       (sample((3, 2), function="pinv", options=(False,)),)),
    "matrix_rank": LibraryRow(matrix_rank, lambda x, *_: ((INT64, x.shape[:-2]),)),
    "matrix_exp": LibraryRow(matrix_exp, same_type, matrix_exp_gradients, (sample((3, 3), function="matrix_exp"),)),
    "lu": LibraryRow(lu, lambda x, pivot: ((x.dtype, x.shape), (INT32, _few(x))), lu_gradients, (
        sample((3, 3), function="lu", options=(True,)), sample((4, 2), function="lu", options=(True,)),
        sample((2, 4), function="lu", options=(False,)))),
    "permutation": LibraryRow(permutation, lambda pivots, rows: ((FLOAT32, (*pivots.shape[:-1], rows, rows)),)),
    "reflected": LibraryRow(reflected, lambda x, tau, c, *_: ((c.dtype, (
        *np.broadcast_shapes(x.shape[:-2], c.shape[:-2]), *c.shape[-2:])),), reflected_gradients,
        (sample((4, 2), (2,), (4, 3), function="reflected", options=(True, False)),)),
    "geqrf": LibraryRow(lambda x: map_matrices(lambda m: scipy_module("linalg").qr(m, mode="raw")[0], 2, x),
                        lambda x: ((x.dtype, x.shape), (x.dtype, _few(x)))),
    "ldl_solve": LibraryRow(_ldl_solve, lambda packed, pivots, right, hermitian: ((right.dtype, (
        *np.broadcast_shapes(packed.shape[:-2], right.shape[:-2]), *right.shape[-2:])),)),
    "ldl": LibraryRow(_ldl, lambda x, hermitian: ((x.dtype, x.shape), (INT32, x.shape[:-1]))),
}  # fmt: skip
"""Functions of matrices."""


# Elements chosen by their values.


def nanmedian(x: Array, dim: int) -> tuple[Array, Array]:
    """Return the lower medians along a dimension, without NaN, and their places."""
    order = np.argsort(x, dim, kind="stable")
    count = np.maximum((~np.isnan(x)).sum(dim, keepdims=True), 1) if x.dtype.kind == "f" else x.shape[dim]
    places = np.take_along_axis(order, np.broadcast_to((count - 1) // 2, [1 if d == dim else n for d, n in
                                enumerate(x.shape)]), dim)  # fmt: skip
    return np.take_along_axis(x, places, dim), places


def mode(x: Array, dim: int) -> tuple[Array, Array]:
    """Return the smallest of the most frequent values along a dimension, and its last position."""
    rows = np.moveaxis(x, dim, -1)
    counts = (rows[..., :, None] == rows[..., None, :]).sum(-1)
    most = counts == counts.max(-1, keepdims=True)
    kind = rows.astype(np.float64) if rows.dtype.kind != "i" else rows
    limit = np.inf if kind.dtype.kind == "f" else np.iinfo(kind.dtype).max
    least = np.where(most, kind, limit).min(-1, keepdims=True)
    same = kind == least
    places = rows.shape[-1] - 1 - same[..., ::-1].argmax(-1)
    places = np.expand_dims(places, dim)
    return np.take_along_axis(x, places, dim), places


def placed_gradients(own: Any, outs: Any, douts: Any, dim: int) -> Any:
    """Return the gradient of elements chosen along a dimension."""
    made = np.zeros_like(own[0])
    np.put_along_axis(made, outs[1], douts[0], dim)
    return [made]


def chosen_types(x: TensorType, dim: int) -> ResultTypes:
    require_elements("LibraryFunction", x.shape, (dim,), "element to choose")
    shape = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    return (x.dtype, shape), (INT64, shape)


def fractional(x: Array, samples: Array, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[Array, Array]:
    """Return the maxima of windows at randomly drawn positions, and their positions in the image."""
    dims, image = len(kernel), x.shape[-len(kernel) :]
    order = range(dims) if dims == 3 else (1, 0)  # the samples of images are of width and height
    flat = x.reshape(-1, *image)
    channels = flat.shape[0]
    places = np.arange(math.prod(image)).reshape(image)
    draws = np.broadcast_to(samples.reshape(-1, dims), (channels, dims))
    values, found = np.zeros((channels, *sizes), x.dtype), np.zeros((channels, *sizes), np.int64)
    for c in range(channels):
        starts = [_starts(draws[c, order[d]], image[d], sizes[d], kernel[d]) for d in range(dims)]
        for at in np.ndindex(*sizes):
            window = tuple(slice(starts[d][i], starts[d][i] + kernel[d]) for d, i in enumerate(at))
            best = flat[c][window].argmax()
            values[(c, *at)], found[(c, *at)] = flat[c][window].flat[best], places[window].flat[best]
    shape = (*x.shape[:-dims], *sizes)
    return values.reshape(shape), found.reshape(shape)


def _starts(draw: Any, size: int, count: int, kernel: int) -> list[int]:
    if count == 1:
        return [size - kernel]
    step = draw.dtype.type(size - kernel) / draw.dtype.type(count - 1)
    return [*(int((i + draw) * step) - int(draw * step) for i in range(count - 1)), size - kernel]


def fractional_gradients(own: Any, outs: Any, douts: Any, kernel: Sequence[int], sizes: Sequence[int]) -> Any:
    x, dims = own[0], len(kernel)
    made = np.zeros((math.prod(x.shape[:-dims]), math.prod(x.shape[-dims:])), x.dtype)
    rows = np.arange(made.shape[0])[:, None]
    np.add.at(made, (rows, outs[1].reshape(made.shape[0], -1)), douts[0].reshape(made.shape[0], -1))
    return [made.reshape(x.shape), None]


def segment_reduce(x: Array, lengths: Array, reduce: str, axis: int, initial: Any, are_offsets: bool) -> Array:
    """Return the sum, mean, product, maximum or minimum of successive parts of a dimension."""
    ends = _ends_of_segments(lengths, are_offsets)
    found = np.zeros((*x.shape[:axis], ends.shape[-1] - 1, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(*x.shape[:axis]):
        for k in range(ends.shape[-1] - 1):
            found[(*at, k)] = _segment(x[at][ends[(*at, k)] : ends[(*at, k + 1)]], reduce, initial)
    return found


def _ends_of_segments(lengths: Array, are_offsets: bool) -> Array:
    if are_offsets:
        return lengths
    return np.concatenate([np.zeros((*lengths.shape[:-1], 1), np.int64), lengths.cumsum(-1)], -1)


_EMPTY = {"sum": 0.0, "mean": math.nan, "prod": 1.0, "max": -math.inf, "min": math.inf}


def _segment(part: Array, reduce: str, initial: Any) -> Array:
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    if not len(part):
        return np.full(part.shape[1:], _EMPTY[reduce] if initial is None else initial, part.dtype)
    if initial is not None:
        part = np.concatenate([np.full((1, *part.shape[1:]), initial, part.dtype), part])
        return part.sum(0) / (len(part) - 1) if reduce == "mean" else getattr(np, name)(part, 0)
    return getattr(np, name)(part, 0)


def segment_gradients(own: Any, outs: Any, douts: Any, reduce: str, axis: int, initial: Any, are_offsets: bool) -> Any:
    x, lengths = own
    ends = _ends_of_segments(lengths, are_offsets)
    made = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:axis]):
        for k in range(ends.shape[-1] - 1):
            place = slice(ends[(*at, k)], ends[(*at, k + 1)])
            part, d, y = x[at][place], douts[0][(*at, k)], outs[0][(*at, k)]
            if not len(part):
                continue
            if reduce in ("sum", "mean"):
                weight = np.broadcast_to(d / (len(part) if reduce == "mean" else 1), part.shape)
            elif reduce == "prod":
                start = 1 if initial is None else initial
                others = np.stack([np.delete(part, i, 0).prod(0) for i in range(len(part))])
                weight = d * others * start
            else:
                same = part == y
                weight = np.where(same, d / np.maximum(same.sum(0), 1), 0)
            made[at][place] = weight
    return [made, None]


def histogram(x: Array, *rest: Any) -> tuple[Array, ...]:
    """Return the counts, or the sums of weights, in bins along each of the last dimension's numbers, and the edges.
    rest: the edges of all dimensions if they are given, weights or nothing, and the settings."""
    *tensors, given, bins, limits, density = rest
    rows = x.reshape(-1, len(bins)).astype(np.float64)
    edges, weights = list(tensors[:given]), tensors[given:]
    for d in range(0 if edges else len(bins)):
        column = rows[:, d] if len(rows) else np.array([0.0, 1.0])
        low, high = limits[2 * d : 2 * d + 2] if limits else (column.min(), column.max())
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        edges.append(np.linspace(low, high, bins[d] + 1).astype(x.dtype))
    weight = weights[0].reshape(-1).astype(np.float64) if weights else None
    found, _ = np.histogramdd(rows, [each.astype(np.float64) for each in edges], density=density, weights=weight)
    return found, *edges


def nonzero_static(x: Array, size: int, fill: int) -> Array:
    """Return the places of the first elements that are not 0, as rows, and rows of `fill` after them."""
    found = np.argwhere(x)[:size]
    return np.concatenate([found, np.full((size - len(found), x.ndim), fill, np.int64)])


def _within(found: Array, size: int) -> tuple[Array, Array]:
    """Return the rows with zeros after them up to `size`, and their number. Raise ValueError if there are more."""
    if len(found) > size:
        raise ValueError(f"there are {len(found)} elements, more than the bound {size}: give a larger --size")
    rest = np.zeros((size - len(found), *found.shape[1:]), found.dtype)
    return np.concatenate([found, rest]), np.array(len(found))


def bounded_places(x: Array, size: int) -> tuple[Array, Array]:
    """Return the places of the elements that are not 0, as rows."""
    return _within(np.argwhere(x), size)


def bounded_repeats(repeats: Array, size: int) -> tuple[Array, Array]:
    """Return every index repeated as often as its element says."""
    return _within(np.repeat(np.arange(len(repeats)), repeats), size)


def bounded_unique(x: Array, size: int) -> tuple[Array, ...]:
    """Return the elements in order, each once, how often each occurs, the place of every element of x in them, and
    their number."""
    found, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    values, number = _within(found, size)
    return values, _within(counts, size)[0], inverse.reshape(x.shape), number


def bounded_counts(x: Array, size: int, least: int) -> tuple[Array, Array]:
    """Return how often each integer occurs, and their number."""
    return _within(np.bincount(x.reshape(-1), minlength=least), size)


def unique(x: Array, dim: int | None, is_consecutive: bool, shapes: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Return the different elements, or slices along a dimension, in order, the place of each among them, and their
    counts, both empty if they have the shape [0]; of successive equal ones the first if they are consecutive."""
    own = x.astype(np.float64) if x.dtype.kind == "V" else x
    rows = own.reshape(-1, 1) if dim is None else np.moveaxis(own, dim, 0).reshape(
        own.shape[dim], own.size // max(1, own.shape[dim]))
    order = np.arange(len(rows)) if is_consecutive else np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(0)
    rows = rows[order]
    begins = np.concatenate([np.ones(min(1, len(rows)), bool), (rows[1:] != rows[:-1]).any(-1)])
    places = np.empty(len(rows), np.int64)
    places[order] = np.cumsum(begins) - 1
    first = order[np.flatnonzero(begins)]
    counts = np.diff(np.append(np.flatnonzero(begins), len(rows)))
    none = np.zeros(0, np.int64)
    values = x.reshape(-1)[first] if dim is None else x.take(first, dim)
    is_empty = [tuple(shape) == (0,) for shape in shapes[1:]]
    return (values, none if is_empty[0] else places.reshape(x.shape if dim is None else -1),
            none if is_empty[1] else counts)  # fmt: skip


def selected_gradients(own: Any, outs: Any, douts: Any, *_: Any) -> Any:
    """Return the gradient of the elements that a mask selects."""
    shape = np.broadcast_shapes(own[0].shape, own[1].shape)
    made = np.zeros(shape, own[0].dtype)
    made[np.broadcast_to(own[1], shape)] = douts[0]
    return [made, None]


CHOICES = {
    "nonzero": LibraryRow(lambda x, shape: np.argwhere(x), lambda x, shape: ((INT64, shape),), is_counted=True),
    "masked_select": LibraryRow(
        lambda x, mask, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, mask.shape))[
            np.broadcast_to(mask, np.broadcast_shapes(x.shape, mask.shape))],
        lambda x, mask, shape: ((x.dtype, shape),), selected_gradients, is_counted=True),
    "bincount": LibraryRow(
        lambda x, *rest: np.bincount(x.astype(np.int64), *rest[:-2], minlength=rest[-2]),
        lambda x, *rest: ((
            INT64 if len(rest) == 2 else rest[0].dtype if rest[0].dtype.is_float else FLOAT64, rest[-1]),),
        is_counted=True),
    "unique": LibraryRow(unique, lambda x, dim, is_consecutive, shapes: (
        (x.dtype, shapes[0]), (INT64, shapes[1]), (INT64, shapes[2])), is_counted=True),
    "nanmedian": LibraryRow(nanmedian, chosen_types, placed_gradients,
                            (sample((3, 5), function="nanmedian", options=(1,)),)),
    "mode": LibraryRow(mode, chosen_types, placed_gradients, (sample((3, 5), function="mode", options=(0,)),)),
    "fractional": LibraryRow(fractional, lambda x, samples, kernel, sizes: (
        (x.dtype, (*x.shape[: len(x.shape) - len(sizes)], *sizes)),
        (INT64, (*x.shape[: len(x.shape) - len(sizes)], *sizes))), fractional_gradients),
    "segment_reduce": LibraryRow(segment_reduce, lambda x, lengths, reduce, axis, initial, are_offsets: (
        (x.dtype, (*x.shape[:axis], lengths.shape[-1] - are_offsets, *x.shape[axis + 1 :])),), segment_gradients),
    "histogram": LibraryRow(histogram, lambda x, *rest: (
        (x.dtype, rest[-3]), *((x.dtype, (n + 1,)) for n in rest[-3])), None,
        (sample((20, 2), function="histogram", options=(0, (3, 4), (), False), gradient=False),)),
    "nonzero_static": LibraryRow(nonzero_static, lambda x, size, fill: ((INT64, (size, len(x.shape))),)),
    "bounded_places": LibraryRow(bounded_places, lambda x, size: ((INT64, (size, len(x.shape))), (INT64, ()))),
    "bounded_repeats": LibraryRow(bounded_repeats, lambda x, size: ((INT64, (size,)), (INT64, ()))),
    "bounded_unique": LibraryRow(bounded_unique, lambda x, size: (
        (x.dtype, (size,)), (INT64, (size,)), (INT64, x.shape), (INT64, ()))),
    "bounded_counts": LibraryRow(bounded_counts, lambda x, size, least: ((INT64, (size,)), (INT64, ()))),
}  # fmt: skip
"""Functions that choose, count or reduce elements by other elements."""

FUNCTIONS: dict[str, LibraryRow] = {**SPECIAL, **COMPLEX, **LINEAR, **CHOICES}
"""All functions by their names."""

LibraryFunction.table = FUNCTIONS
LibraryFunction.samples = tuple(each for row in FUNCTIONS.values() for each in row.samples)

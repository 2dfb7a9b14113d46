"""Writes special functions, matrices, Fourier transforms and running extrema in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tensor = Any
Counterpart = Callable[..., Any]
TRANSFORMS = ("FFT", "IFFT", "RFFT", "IRFFT", "HFFT", "IHFFT")


def special(torch: Any) -> dict[str, Counterpart]:
    """Counterparts by the operator's name."""
    return _functions(torch) | _matrices(torch) | _transforms(torch) | _orders(torch)


def _functions(torch: Any) -> dict[str, Counterpart]:
    """Functions element by element."""
    plain = {
        "Angle": torch.angle, "BatchMatMulExt": torch.bmm, "BesselI0": torch.special.i0,
        "BesselI0e": torch.special.i0e, "BesselI1": torch.special.i1, "BesselI1e": torch.special.i1e,
        "Complex": torch.complex, "ComplexAbs": torch.abs, "Conj": torch.conj, "Digamma": torch.digamma,
        "Erfinv": torch.erfinv, "Gcd": torch.gcd, "Imag": lambda x: x.imag if x.is_complex() else torch.zeros_like(x),
        "LeftShift": torch.bitwise_left_shift, "Lgamma": torch.lgamma, "NextAfter": torch.nextafter,
        "Polar": torch.polar, "Real": torch.real, "RightShift": torch.bitwise_right_shift,
        "BesselJ0": torch.special.bessel_j0, "BesselJ1": torch.special.bessel_j1,
        "BesselK0": torch.special.modified_bessel_k0, "BesselK1": torch.special.modified_bessel_k1,
        "BesselK0e": torch.special.scaled_modified_bessel_k0, "BesselK1e": torch.special.scaled_modified_bessel_k1,
        "BesselY0": torch.special.bessel_y0, "BesselY1": torch.special.bessel_y1,
        "Igamma": torch.igamma, "Igammac": torch.igammac, "Zeta": torch.special.zeta,
    }  # fmt: skip
    return {name: _plain(function) for name, function in plain.items()}


def _plain(function: Any) -> Counterpart:
    return lambda op, *operands: function(*operands)


def _matrices(torch: Any) -> dict[str, Counterpart]:
    def adjoint(op: Any, x: Tensor) -> Tensor:
        return x.mH if op.adjoint else x

    def triangular(op: Any, a: Tensor, b: Tensor) -> Tensor:
        column = b.unsqueeze(-1) if b.dim() < a.dim() else b
        turned = {0: a, 1: a.mT, 2: a.mH}[op.trans]
        upper = op.lower == (op.trans != 0)
        found = torch.linalg.solve_triangular(turned, column, upper=upper, unitriangular=op.unit_diagonal)
        return found.squeeze(-1) if b.dim() < a.dim() else found

    def trace(op: Any, x: Tensor) -> Tensor:
        return torch.diagonal(x, op.offset, op.axis1, op.axis2).sum(-1)

    return {
        "Cholesky": lambda op, x: torch.linalg.cholesky(x, upper=op.upper),
        "LogMatrixDeterminant": lambda op, x: tuple(torch.linalg.slogdet(x)),
        "MatrixDeterminant": lambda op, x: torch.linalg.det(x),
        "MatrixExp": lambda op, x: torch.linalg.matrix_exp(x),
        "MatrixInverse": lambda op, x: torch.linalg.inv(adjoint(op, x)),
        "MatrixSolve": lambda op, a, b: torch.linalg.solve(adjoint(op, a), b),
        "SingularValues": lambda op, x: torch.linalg.svdvals(x),
        "SolveTriangular": triangular,
        "TraceV2": trace,
    }


def _transforms(torch: Any) -> dict[str, Counterpart]:
    """`s` and `dim` are empty where a script leaves them to the operator."""

    def of_one(function: Any) -> Counterpart:
        return lambda op, x: function(x, op.s[0] if op.s else None, op.dim[0] if op.dim else -1, op.norm or None)

    def of_several(function: Any, dims: Any) -> Counterpart:
        return lambda op, x: function(x, op.s or None, op.dim or dims, op.norm or None)

    def shifted(function: Any) -> Counterpart:
        return lambda op, x: function(x, op.dim or None)

    module = torch.fft
    found = {name: of_one(getattr(module, name.lower())) for name in TRANSFORMS}
    found |= {f"{name}2": of_several(getattr(module, f"{name.lower()}2"), (-2, -1)) for name in TRANSFORMS}
    found |= {f"{name}N": of_several(getattr(module, f"{name.lower()}n"), None) for name in TRANSFORMS}
    return found | {"FFTShift": shifted(module.fftshift), "IFFTShift": shifted(module.ifftshift)}


def _orders(torch: Any) -> dict[str, Counterpart]:
    def product(op: Any, x: Tensor) -> Tensor:
        turned = x.flip(op.axis) if op.reverse else x
        if op.exclusive:
            first = torch.ones_like(turned.narrow(op.axis, 0, 1))
            turned = torch.cat([first, turned.narrow(op.axis, 0, x.shape[op.axis] - 1)], op.axis)
        found = turned.cumprod(op.axis)
        return found.flip(op.axis) if op.reverse else found

    def products(op: Any, x: Tensor, ids: Tensor) -> Tensor:
        rows = x.reshape(ids.numel(), -1)
        places = ids.reshape(-1, 1).to(torch.int64).expand(rows.shape)
        empty = torch.ones((op.num_segments, rows.shape[1]), dtype=x.dtype)
        return empty.scatter_reduce(0, places, rows, "prod").reshape(op.num_segments, *x.shape[ids.dim() :])

    def norm(op: Any, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, op.p, op.axis if isinstance(op.axis, int) else list(op.axis), op.keep_dims)

    return {
        "LpNorm": norm,
        "RepeatInterleaveTensor": lambda op, x: torch.repeat_interleave(x, torch.tensor(op.repeats), op.dim),
        "UnsortedSegmentProd": products,
        "CumProd": product,
        "Cummax": lambda op, x: (torch.cummax(x, op.axis)[0], None),
        "Cummin": lambda op, x: (torch.cummin(x, op.axis)[0], None),
        "Sort": lambda op, x: (torch.sort(x, op.axis, op.descending)[0], None),
        "SplitV": lambda op, x: torch.split(x, list(op.size_splits), op.split_dim),
    }

"""Kinds of products of matrices."""

from __future__ import annotations

from typing import Any

from mspc.api import mint, ops
from mspc.api.mint.nn import functional
from mspc.readers.pytorch.kinds.kind import row


def scaled_product(self: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * product."""
    scaled = product if alpha == 1 else ops.Mul()(product, alpha)
    if beta == 0:
        return scaled
    return ops.Add()(scaled, self if beta == 1 else ops.Mul()(self, beta))


def of_parts(product: Any, operands: Any) -> Any:
    """A product of several tensors, in each of which it is linear; complex ones by their real and imaginary parts."""
    for place, each in enumerate(operands):
        if each.dtype.is_complex:
            first = of_parts(product, (*operands[:place], ops.Real()(each), *operands[place + 1 :]))
            second = of_parts(product, (*operands[:place], ops.Imag()(each), *operands[place + 1 :]))
            if not first.dtype.is_complex:
                return ops.Complex()(first, second)
            return ops.Complex()(ops.Real()(first) - ops.Imag()(second), ops.Imag()(first) + ops.Real()(second))
    return product(*operands)


PRODUCTS = (
    row("linear.default", "input, weight, bias=None", functional.linear),
    row("matmul.default", "self, other", lambda *operands: of_parts(ops.matmul, operands)),
    row("mm.default", "self, mat2", lambda *operands: of_parts(ops.MatMul(), operands)),
    row("bmm.default", "self, mat2", lambda *operands: of_parts(ops.BatchMatMul(), operands)),
    row("mv.default", "self, vec", lambda *operands: of_parts(mint.mv, operands)),
    row("dot.default", "self, tensor", lambda self, tensor: ops.ReduceSum()(ops.Mul()(self, tensor))),
    row("addmm.default", "self, mat1, mat2, beta=1, alpha=1",
        lambda self, mat1, mat2, beta, alpha: scaled_product(self, ops.MatMul()(mat1, mat2), beta, alpha)),
    row("baddbmm.default", "self, batch1, batch2, beta=1, alpha=1",
        lambda self, batch1, batch2, beta, alpha: scaled_product(self, ops.BatchMatMul()(batch1, batch2), beta, alpha)),
    row("addmv.default", "self, mat, vec, beta=1, alpha=1",
        lambda self, mat, vec, beta, alpha: scaled_product(self, mint.mv(mat, vec), beta, alpha)),
    row("cdist.default", "x1, x2, p=2.0, -compute_mode=None", lambda x1, x2, p: ops.Cdist(float(p))(x1, x2)),
    row("_cdist_forward.default", "x1, x2, p, -compute_mode", lambda x1, x2, p: ops.Cdist(float(p))(x1, x2)),
    row("einsum.default", "equation, tensors, -path=None",
        lambda equation, tensors: of_parts(lambda *each: ops.einsum(equation, *each), tensors)),
    row("outer.default", "self, vec2", mint.outer),
)  # fmt: skip
"""Kinds of products."""

"""Complex numbers and Fourier transforms beside PyTorch: values, element types, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

LINES, PLANES, SPACES = (
    [(), (5,), (8,), (3, 0), (4, 1, "ortho"), (6, -2, "forward"), (None, 0, "backward")],
    [(), ((3, 5),), ((4, 4), (0, 1)), (None, (2, 0), "ortho"), ((5, 2), (-1, -3), "forward")],
    [(), ((3, 5),), (None, (1,)), ((4, 2, 3), (2, 0, 1), "ortho"), (None, (0, 2), "forward")],
)
CASES = [
    (f"{kind}{suffix}", arguments)
    for kind in ("fft", "ifft", "rfft", "irfft")
    for suffix, cases in (("", LINES), ("2", PLANES), ("n", SPACES))
    for arguments in cases
]
WIDE = {"float32": 3e-6, "float64": 1e-13}


def drawn(*shape: int, seed: int = 5, real: bool = False, kind: str = "float64") -> np.ndarray:
    generator = np.random.default_rng(seed)
    numbers = generator.uniform(-2, 2, shape) + 1j * generator.uniform(-2, 2, shape)
    return numbers.real.astype(kind) if real else numbers.astype("complex64" if kind == "float32" else "complex128")


def judged(mine: Any, theirs: Any, arrays: list[np.ndarray], kind: str = "float64") -> None:
    """Values, and gradients of a weighted sum of the parts of the result."""
    watched = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*watched)
    result = mine(*[Tensor(a) for a in arrays])
    assert str(result.dtype).lower() == str(expected.dtype).removeprefix("torch.")
    near(result.asnumpy(), expected.detach().resolve_conj().numpy(), kind)
    weights = [drawn(*expected.shape, seed=seed, real=True, kind=kind) for seed in (7, 8)]

    def total(*values: Any) -> Any:
        made = mine(*values)
        return ops.ReduceSum()(ops.real(made) * Tensor(weights[0]) + ops.imag(made) * Tensor(weights[1]))

    parts = (expected.real, expected.imag) if expected.is_complex() else (expected,)
    sum((part * torch.tensor(w)).sum() for part, w in zip(parts, weights, strict=False)).backward()
    found = ops.grad(total, tuple(range(len(arrays))))(*[Tensor(a) for a in arrays])
    for gradient, tensor in zip(found if isinstance(found, tuple) else (found,), watched, strict=True):
        near(gradient.asnumpy(), tensor.grad.resolve_conj().numpy(), kind)


def near(found: np.ndarray, expected: np.ndarray, kind: str) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=WIDE[kind] * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_a_transform_is_pytorchs(name: str, arguments: tuple[Any, ...]) -> None:
    real = name.startswith("rfft")
    x = drawn(4, 3, 6, real=real)
    judged(lambda x: getattr(ops, name)(x, *arguments), lambda x: getattr(torch.fft, name)(x, *arguments), [x])


@pytest.mark.parametrize("name", ["fft", "rfft", "irfftn", "ifft2"])
def test_single_precision_stays_single(name: str) -> None:
    real = name.startswith("rfft")
    x = drawn(4, 3, 6, real=real, kind="float32")
    judged(lambda x: getattr(ops, name)(x), lambda x: getattr(torch.fft, name)(x), [x], "float32")


@pytest.mark.parametrize("name", ["fft", "ifft2", "fftn", "irfft"])
def test_real_numbers_have_a_transform_and_a_real_gradient(name: str) -> None:
    judged(lambda x: getattr(ops, name)(x), lambda x: getattr(torch.fft, name)(x), [drawn(3, 4, real=True)])


@pytest.mark.parametrize("arguments", [(), (1,), ((0, 2),)])
@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_a_shift_is_pytorchs(name: str, arguments: tuple[Any, ...]) -> None:
    judged(
        lambda x: getattr(ops, name)(x, *arguments), lambda x: getattr(torch.fft, name)(x, *arguments), [drawn(4, 3, 5)]
    )


FUNCTIONS: dict[str, tuple[Any, Any, list[np.ndarray]]] = {
    "complex": (ops.Complex(), torch.complex, [drawn(3, 4, real=True), drawn(3, 4, real=True, seed=6)]),
    "polar": (ops.polar, torch.polar, [np.abs(drawn(3, 4, real=True)), drawn(3, 4, real=True, seed=6)]),
    "real": (ops.real, lambda x: x.real.clone(), [drawn(3, 4)]),
    "imag": (ops.imag, lambda x: x.imag.clone(), [drawn(3, 4)]),
    "conj": (ops.conj, lambda x: torch.resolve_conj(x.conj()), [drawn(3, 4)]),
    "abs": (ops.ComplexAbs(), torch.abs, [drawn(3, 4)]),
    "product": (ops.mul, torch.mul, [drawn(3, 4), drawn(4, seed=6)]),
    "quotient": (ops.div, torch.div, [drawn(3, 4), drawn(3, 1, seed=6)]),
    "difference": (ops.sub, torch.sub, [drawn(3, 4), drawn(3, 1, seed=6)]),
    "a complex and a real factor": (ops.mul, torch.mul, [drawn(3, 4), drawn(4, seed=6, real=True)]),
    "moved": (lambda x: ops.reshape(ops.transpose(x, (1, 0)), (-1,)), lambda x: x.T.reshape(-1), [drawn(3, 4)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_arithmetic_is_pytorchs(name: str) -> None:
    judged(*FUNCTIONS[name])

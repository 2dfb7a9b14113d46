"""Normalisations, activations, Fourier transforms, triangular systems and updates against PyTorch, in half precision
and at the ends of their range too."""

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, mint, nn, ops
from mspc.mindspore_api.nn.activation import get_activation

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch  # noqa: E402  # it imports PyTorch  # noqa: E402  # it imports PyTorch

F = torch.nn.functional


@pytest.mark.parametrize("normalized", [(6,), (5, 6)])
def test_layer_norm(normalized: tuple[int, ...]) -> None:
    arrays = [floats(1, 4, 5, 6), floats(2, *normalized), floats(3, *normalized)]
    same(lambda x, g, b: ops.layer_norm(x, normalized, g, b, 1e-3),
         lambda x, g, b: F.layer_norm(x, normalized, g, b, 1e-3), arrays)  # fmt: skip
    same(lambda x, g, b: mint.nn.functional.layer_norm(x, normalized, g, b),
         lambda x, g, b: F.layer_norm(x, normalized, g, b), arrays)  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 1000.0, 8000.0])
@pytest.mark.parametrize("columns", [64, 4096])
def test_layer_norm_of_halves(columns: int, scale: float) -> None:
    """The square of a standard deviation above 256 is more than a half holds."""
    x = (floats(1, 4, columns) * scale).astype(np.float16)
    x[0] += np.float16(scale)
    gamma, beta = floats(2, columns, dtype=np.float16), floats(3, columns, dtype=np.float16)
    same(lambda a, g, b: ops.layer_norm(a, (columns,), g, b), lambda a, g, b: F.layer_norm(a, (columns,), g, b),
         [x, gamma, beta], tolerance=2e-3)  # fmt: skip
    _, mean, variance = ops.LayerNorm(-1, -1)(Tensor(x), Tensor(gamma), Tensor(beta))
    near(mean.asnumpy()[:, 0], x.astype(np.float64).mean(1), "mean", 1e-5)
    near(variance.asnumpy()[:, 0], x.astype(np.float64).var(1), "variance", 1e-5)


def test_gradients_of_means_and_variances() -> None:
    def mine(x: Any, g: Any, b: Any) -> Any:
        y, mean, variance = ops.LayerNorm(-1, -1, 1e-3)(x, g, b)
        return y + ops.cast(mean * variance, y.dtype)

    def theirs(x: Any, g: Any, b: Any) -> Any:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return F.layer_norm(x, (6,), g, b, 1e-3) + mean * variance

    for dtype in (np.float64, np.float16):
        same(mine, theirs, [floats(1, 4, 6, dtype=dtype), floats(2, 6, dtype=dtype), floats(3, 6, dtype=dtype)],
             tolerance=1e-10 if dtype == np.float64 else 1e-2)  # fmt: skip


def test_halves_with_parameters_of_float32() -> None:
    """Computed in Float32, of the element type of x, as MindSpore's are; the parameters' gradients are Float32."""
    x = floats(1, 4, 6, dtype=np.float16)
    gamma, beta = (floats(seed, 6, dtype=np.float32, low=0.1) for seed in (2, 3))
    same(lambda a, g, b: ops.layer_norm(a, (6,), g, b), lambda a, g, b: F.layer_norm(a.float(), (6,), g, b).half(),
         [x, gamma, beta])  # fmt: skip
    same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a.float(), (6,), g, 1e-5).half(), [x, gamma])
    same(lambda a, g, b: ops.group_norm(a, 3, g, b), lambda a, g, b: F.group_norm(a.float(), 3, g, b).half(),
         [x, gamma, beta], tolerance=4e-3)  # fmt: skip
    for cell in (nn.LayerNorm((6,)), nn.GroupNorm(3, 6), nn.PReLU(6)):
        assert str(cell(Tensor(x)).dtype) == "Float16"
        assert str(ops.grad(cell, None, cell.trainable_params())(Tensor(x))[0].dtype) == "Float32"


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_rms_norm(dtype: Any) -> None:
    x, gamma = floats(1, 4, 64, dtype=dtype), floats(2, 64, dtype=dtype)
    same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a, (64,), g, 1e-5), [x, gamma])
    if dtype == np.float16:
        large = (x * 10000).astype(np.float16)
        same(lambda a, g: ops.RmsNorm(1e-5)(a, g)[0], lambda a, g: F.rms_norm(a, (64,), g, 1e-5), [large, gamma])
        assert str(ops.RmsNorm()(Tensor(x), Tensor(gamma))[1].dtype) == "Float32"


def test_cells() -> None:
    x = floats(1, 4, 6, dtype=np.float32)
    same(nn.LayerNorm((6,), epsilon=1e-5), torch.nn.LayerNorm(6), [x])
    same(mint.nn.LayerNorm(6), torch.nn.LayerNorm(6), [x])
    same(nn.RMSNorm(6, 1e-6), torch.nn.RMSNorm(6, 1e-6), [x])


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_halves_are_taken_in_float32(axis: int) -> None:
    x = np.full((5000, 4) if axis == 0 else (4, 5000), 0.1, np.float16)
    x[0, 0] = 100
    wide = torch.tensor(x, dtype=torch.float32)
    near(ops.reduce_sum(Tensor(x), axis).asnumpy(), wide.sum(axis).half().numpy(), "sum", 1e-3)
    near(ops.reduce_mean(Tensor(x), axis).asnumpy(), wide.mean(axis).half().numpy(), "mean", 1e-3)
    larger = torch.tensor(x * 600, dtype=torch.float32).mean(axis).half().numpy()
    near(ops.mean(Tensor(x * 600), axis).asnumpy(), larger, "mean of what sums to more than a half holds", 1e-3)
    near(ops.L2Normalize(axis, 1e-12)(Tensor(x * 500)).asnumpy(),
         F.normalize(torch.tensor(x * 500, dtype=torch.float32), dim=axis).half().numpy(), "norm", 1e-3)  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_halves_gives_halves(training: bool) -> None:
    x = floats(1, 8, 4, 3, 3, dtype=np.float16)
    cell, judged = nn.BatchNorm2d(4).set_train(training), torch.nn.BatchNorm2d(4).train(training)
    found = cell(Tensor(x))
    assert found.dtype == ms.float16
    near(found.asnumpy(), judged(torch.tensor(x).float()).detach().numpy(), "halves", 2e-3)
    near(cell.moving_mean.asnumpy(), judged.running_mean.numpy(), "moving mean")


ENDS = np.array([0.0, -0.0, 1e-30, 25.0, -25.0, 90.0, -90.0, 800.0, -800.0, np.nan])
EVERYWHERE: list[tuple[str, Any, Any]] = [
    ("relu", ops.relu, F.relu), ("relu6", ops.relu6, F.relu6), ("sigmoid", ops.sigmoid, F.sigmoid),
    ("tanh", ops.tanh, F.tanh), ("silu", ops.silu, F.silu),
    ("gelu", ops.gelu, F.gelu), ("gelu tanh", lambda x: ops.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    ("GeLU", lambda x: ops.GeLU()(x), lambda x: F.gelu(x, approximate="tanh")),
    ("nn.GELU", nn.GELU(), lambda x: F.gelu(x, approximate="tanh")), ("nn.GELU exact", nn.GELU(False), F.gelu),
    ("mint gelu", mint.nn.functional.gelu, F.gelu),
    ("fast_gelu", ops.fast_gelu, lambda x: x * F.sigmoid(1.702 * x)),
    ("elu", ops.elu, F.elu), ("elu 0.5", lambda x: ops.elu(x, 0.5), lambda x: F.elu(x, 0.5)),
    ("celu", lambda x: ops.celu(x, 0.5), lambda x: F.celu(x, 0.5)),
    ("celu below 0", lambda x: ops.celu(x, -2.0), lambda x: F.celu(x, -2.0)), ("selu", ops.selu, F.selu),
    ("leaky_relu", ops.leaky_relu, lambda x: F.leaky_relu(x, 0.2)),
    ("leaky_relu above 1", lambda x: ops.leaky_relu(x, 3.0), lambda x: F.leaky_relu(x, 3.0)),
    ("mint leaky_relu", mint.nn.functional.leaky_relu, F.leaky_relu), ("nn.LeakyReLU", nn.LeakyReLU(0.1), lambda x: F.leaky_relu(x, 0.1)),  # noqa: E501
    ("mish", ops.mish, F.mish), ("hardswish", ops.hardswish, F.hardswish), ("hardsigmoid", ops.hardsigmoid, F.hardsigmoid),  # noqa: E501
    ("hardtanh", lambda x: ops.hardtanh(x, -0.5, 2.0), lambda x: F.hardtanh(x, -0.5, 2.0)),
    ("hardshrink", ops.hardshrink, F.hardshrink), ("softshrink", ops.softshrink, F.softshrink),
    ("tanhshrink", ops.tanhshrink, F.tanhshrink), ("softsign", ops.softsign, F.softsign),
    ("threshold", lambda x: ops.threshold(x, 0.1, -2.0), lambda x: F.threshold(x, 0.1, -2.0)),
    ("logsigmoid", ops.logsigmoid, F.logsigmoid), ("softplus", ops.softplus, F.softplus),
    ("softplus 2 5", lambda x: ops.softplus(x, 2.0, 5.0), lambda x: F.softplus(x, 2.0, 5.0)),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs"), [e[1:] for e in EVERYWHERE], ids=[e[0] for e in EVERYWHERE])
def test_everywhere(mine: Any, theirs: Any) -> None:
    with np.errstate(all="ignore"):
        same(mine, theirs, [floats(1, 3, 40)], tolerance=1e-7)  # PyTorch's 1 / 6 is a Float32
        same(mine, theirs, [np.array(0.7)], tolerance=1e-7)
        same(mine, theirs, [ENDS[:-1]], tolerance=1e-7)
        same(mine, theirs, [ENDS], grads=[])
        same(mine, theirs, [np.array([np.inf, -np.inf])], grads=[])
        same(mine, theirs, [floats(2, 50, dtype=np.float16)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_an_axis(axis: int) -> None:
    x = floats(1, 4, 6, 2)
    same(lambda a: ops.softmax(a, axis), lambda a: F.softmax(a, axis), [x])
    same(lambda a: ops.log_softmax(a, axis), lambda a: F.log_softmax(a, axis), [x])
    same(nn.GLU(axis), lambda a: F.glu(a, axis), [x])
    wide = floats(2, 3, 3000, 2, dtype=np.float16)
    same(lambda a: ops.softmax(a, 1), lambda a: F.softmax(a, 1), [wide])
    same(lambda a: ops.log_softmax(a, 1), lambda a: F.log_softmax(a, 1), [wide])
    masked = x.copy()
    masked[0, :, 0] = -np.inf
    with np.errstate(all="ignore"):
        same(lambda a: ops.softmax(a, axis), lambda a: F.softmax(a, axis), [masked], grads=[])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_prelu(shape: tuple[int, ...]) -> None:
    same(ops.prelu, F.prelu, [floats(1, *shape), floats(2, 3)])
    same(ops.prelu, F.prelu, [floats(1, *shape), floats(2, 1)])


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("fast_gelu", lambda x: x * F.sigmoid(1.702 * x)), ("hswish", F.hardswish), ("hsigmoid", F.hardsigmoid),
     ("elu", F.elu), ("logsigmoid", F.logsigmoid), ("softmax", lambda x: F.softmax(x, -1)), ("hardtanh", F.hardtanh),
     ("leakyrelu", lambda x: F.leaky_relu(x, 0.2))],
)  # fmt: skip
def test_activations_by_name(name: str, theirs: Any) -> None:
    same(get_activation(name), theirs, [floats(1, 4, 6)], tolerance=1e-7)


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
    fourier_near(result.asnumpy(), expected.detach().resolve_conj().numpy(), kind)
    weights = [drawn(*expected.shape, seed=seed, real=True, kind=kind) for seed in (7, 8)]

    def total(*values: Any) -> Any:
        made = mine(*values)
        return ops.ReduceSum()(ops.real(made) * Tensor(weights[0]) + ops.imag(made) * Tensor(weights[1]))

    parts = (expected.real, expected.imag) if expected.is_complex() else (expected,)
    sum((part * torch.tensor(w)).sum() for part, w in zip(parts, weights, strict=False)).backward()
    found = ops.grad(total, tuple(range(len(arrays))))(*[Tensor(a) for a in arrays])
    for gradient, tensor in zip(found if isinstance(found, tuple) else (found,), watched, strict=True):
        fourier_near(gradient.asnumpy(), tensor.grad.resolve_conj().numpy(), kind)


def fourier_near(found: np.ndarray, expected: np.ndarray, kind: str) -> None:
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


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3)])
def test_a_triangular_system(trans: int, lower: bool, unit: bool, shape: tuple[int, ...]) -> None:
    def theirs(a: Any, b: Any) -> Any:
        matrices = a.transpose(-1, -2) if trans else a
        sides = b if b.ndim == a.ndim else b[..., None]
        upper = lower if trans else not lower
        found = torch.linalg.solve_triangular(matrices, sides, upper=upper, unitriangular=unit)
        return found if b.ndim == a.ndim else found[..., 0]

    matrices = floats(2, 2, 4, 4, low=-0.5, high=0.5) + 2 * np.eye(4)
    same(lambda a, b: ops.SolveTriangular()(a, b, trans, lower, unit), theirs, [matrices, floats(3, *shape)])


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_factors(upper: bool) -> None:
    roots = floats(4, 2, 3, 3)
    matrices = roots @ roots.swapaxes(-1, -2) + np.eye(3)
    same(ops.Cholesky(upper), lambda x: torch.linalg.cholesky(x, upper=upper), [matrices])


ROWS = np.array([[4, 0], [4, 2]], np.int32)
DIFFERENT = np.array([[4, 0], [1, 2]], np.int32)
PLACES = np.array([[4, 1], [0, 2], [4, 1]], np.int32)
KINDS = [np.float64, np.float32, np.float16, np.int32, np.int64]
COMBINED = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": lambda x, y: x / y,
    "Max": torch.maximum, "Min": torch.minimum, "Update": lambda x, y: y,
}  # fmt: skip


def update_drawn(seed: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    return floats(seed, *shape, low=1.0, high=9.0).round(1 if np.dtype(kind).kind == "f" else 0).astype(kind)


def changed(x: np.ndarray, places: np.ndarray, updates: np.ndarray, combine: Any) -> np.ndarray:
    """Places of x, one after the other, combined with their updates."""
    held = torch.tensor(x)
    for place, update in zip(places, updates, strict=True):
        at = tuple(np.atleast_1d(place).tolist())
        held[at] = combine(held[at], torch.tensor(update)).to(held.dtype)
    return held.numpy()


def check(made: Any, x: np.ndarray, places: np.ndarray, updates: np.ndarray, expected: np.ndarray) -> None:
    parameter = Parameter(Tensor(x), "x")
    result = made(parameter, Tensor(places), Tensor(updates))
    near(parameter.asnumpy(), expected, "parameter")
    near(result.asnumpy(), expected, "result")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Max", "Min", "Update", "Div"])
def test_rows(how: str, kind: Any) -> None:
    rows = DIFFERENT if how == "Update" else ROWS
    x, updates = update_drawn(1, (5, 3), kind), update_drawn(2, (2, 2, 3), kind)
    expected = changed(x, rows.reshape(-1), updates.reshape(4, 3), COMBINED[how])
    if how != "Div" or np.dtype(kind).kind == "f":
        check(getattr(ops, f"Scatter{how}")(), x, rows, updates, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["Add", "Sub", "Update"])
def test_elements(how: str, kind: Any) -> None:
    places = PLACES[:2] if how == "Update" else PLACES
    x, updates = update_drawn(3, (5, 3, 2), kind), update_drawn(4, (len(places), 2), kind)
    check(getattr(ops, f"ScatterNd{how}")(), x, places, updates, changed(x, places, updates, COMBINED[how]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "how"), [
    ("Assign", "Update"), ("AssignAdd", "Add"), ("AssignSub", "Sub"),
    ("assign", "Update"), ("assign_add", "Add"), ("assign_sub", "Sub"),
])  # fmt: skip
def test_whole_parameters(name: str, how: str, kind: Any) -> None:
    x, update = update_drawn(7, (5, 3), kind), update_drawn(8, (5, 3), kind)
    parameter = Parameter(Tensor(x), "x")
    made = getattr(ops, name)
    (made() if isinstance(made, type) else made)(parameter, Tensor(update))
    near(parameter.asnumpy(), COMBINED[how](torch.tensor(x), torch.tensor(update)).numpy())

"""Kernels of NumPy: their formulas, random draws, BLAS by its address, the error function, and half precision."""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import blocks as fused
from mspc.ops.cpu import gemm
from mspc.ops.cpu.blocks import is_half
from mspc.ops.cpu.special_functions import erf
from mspc.ops.nn.softmax import Softmax, SoftmaxBackward
from mspc.ops.random.words import keep_mask, mixed, random_words
from tests.executors import NumPyBackend, OneRank
from tests.graphs import BFLOAT16, FLOAT16, REGISTRY, DType, Op, element_types
from tests.grouped import MANY, grouped
from tests.operators import Add, AddN, Exp, GeLU, GeLUGrad, LayerNorm, LayerNormGrad
from tests.ops.backend import BACKEND
from tests.ops.simulate import arrays_of, operator_of, samples_of, types_of


@pytest.mark.parametrize(
    ("shape", "begin", "local"),
    [
        ((), (), ()), ((0, 3), (0, 0), (0, 3)), ((4, 6, 2), (2, 0, 0), (2, 6, 2)), ((4, 6, 3), (1, 2, 1), (2, 3, 2)),
        ((2, 4, 8), (0, 0, 5), (2, 4, 1)), ((1, 1, 7), (0, 0, 2), (1, 1, 3)), ((70000, 3), (1, 1), (69000, 2)),
        ((2, 300000), (1, 5), (1, 200000)), ((300000,), (7,), (290000,)),
    ],
)  # fmt: skip
def test_words_of_a_slice_are_those_of_its_places(
    shape: tuple[int, ...], begin: tuple[int, ...], local: tuple[int, ...]
) -> None:
    """Also where a slice is drawn in several blocks; each number is found from its place by itself."""
    words = random_words(np, 12345, shape, begin, local)
    assert words.shape == local
    places = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    places = places[tuple(slice(b, b + n) for b, n in zip(begin, local, strict=True))].reshape(-1)
    golden = 0x9E3779B97F4A7C15
    for i in {0, 1, len(places) // 3, 65535, 65536, len(places) - 1} & set(range(len(places))):
        assert int(words.reshape(-1)[i]) == mixed((int(places[i]) * golden + 12345 + golden) % 2**64)


@pytest.mark.parametrize(
    ("shape", "begin", "local"),
    [
        ((), (), ()), ((0, 3), (0, 0), (0, 3)), ((5, 33), (0, 0), (5, 33)),
        ((3, 5, 64), (0, 2, 16), (3, 2, 32)), ((4, 6, 40), (1, 2, 7), (2, 3, 29)),
        ((2, 4, 8), (0, 0, 5), (2, 4, 1)), ((70000, 3), (1, 1), (69000, 2)), ((2, 300000), (1, 5), (1, 200000)),
        ((300000,), (16,), (280000,)),
    ],
)  # fmt: skip
def test_masks_of_a_slice_are_those_of_its_places(
    shape: tuple[int, ...], begin: tuple[int, ...], local: tuple[int, ...]
) -> None:
    """Sixteen bits of a word decide, found here from each place by itself."""
    mask = keep_mask(np, 12345, shape, begin, local, 0.3)
    assert mask.shape == local
    assert mask.dtype == bool
    places = list(np.ndindex(local))
    golden = 0x9E3779B97F4A7C15
    for i in {0, 1, 20, len(places) // 3, 65535, 65536, len(places) - 1} & set(range(len(places))):
        place = tuple(p + b for p, b in zip(places[i], begin, strict=True))
        group, rest = divmod(int(np.ravel_multi_index(place, shape)) if shape else 0, 16)
        word = mixed(((4 * group + rest % 8 // 2) * golden + 12345 + golden) % 2**64)
        bits = word >> 16 * (rest % 2 + rest // 8 * 2) & 0xFFFF
        assert mask[places[i]] == (bits < round(0.3 * 65536))
    if len(places) > 1000:
        assert abs(mask.mean() - 0.3) < 0.01


@pytest.mark.parametrize(("keep_prob", "share"), [(1.0, 1.0), (1e-9, 0.0), (0.75, 0.75)])
def test_masks_have_their_share(keep_prob: float, share: float) -> None:
    mask = keep_mask(np, 7, (100, 1000), (0, 0), (100, 1000), keep_prob)
    assert mask.mean() == pytest.approx(share, abs=0.01 if 0 < share < 1 else 0)


# The OpenBLAS of NumPy's wheels: its threads and its products as C++ calls them.


_BY_ROWS, _AS_IT_IS, _TURNED = 101, 111, 112


@pytest.mark.parametrize(("before", "after"), [(8, [2]), (2, []), (1, [])])
def test_ranks_limit_blas(before: int, after: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(gemm, "thread_count", lambda: 2)
    monkeypatch.setattr(gemm, "blas_threads", lambda: (lambda: before, seen.append))
    gemm.limit_blas()
    assert seen == after


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, ctypes.c_float), (np.float64, ctypes.c_double)])
def test_a_product_by_its_address(dtype: type, number: type) -> None:
    address = gemm.gemm_address(np.dtype(dtype))
    if address is None:
        pytest.skip("NumPy has another BLAS")
    size, pointer, kind = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    product = ctypes.CFUNCTYPE(
        None, kind, kind, kind, size, size, size, number, pointer, size, pointer, size, number, pointer, size
    )(address)
    rng = np.random.default_rng(0)
    x, y, out = rng.random((3, 4)).astype(dtype), rng.random((5, 4)).astype(dtype), np.ones((3, 5), dtype)
    places = (array.ctypes.data for array in (x, y, out))
    product(_BY_ROWS, _AS_IT_IS, _TURNED, 3, 5, 4, 1, next(places), 4, next(places), 4, 1, next(places), 5)
    np.testing.assert_allclose(out, x @ y.T + 1, rtol=1e-6)


def test_other_element_types_have_no_product() -> None:
    assert gemm.gemm_address(np.dtype(np.float16)) is None


# The error function, against the C library's.


GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize("x", [
    GENERATOR.uniform(-7, 7, 20000), GENERATOR.uniform(-1, 1, 20000), GENERATOR.uniform(-1e-2, 1e-2, 20000),
    10.0 ** GENERATOR.uniform(-300, 1, 20000), (np.arange(-400, 400) + 0.5) / 64,
])  # fmt: skip
def test_three_units_in_the_last_place(x: Any) -> None:
    expected = np.array([math.erf(value) for value in x])
    apart = np.abs(erf(np, x) - expected) / np.spacing(np.abs(expected))
    assert apart.max() <= 3
    assert apart.mean() <= 0.6


def test_what_is_no_ordinary_number() -> None:
    with np.errstate(all="raise"):
        found = erf(np, np.array([[np.nan, np.inf], [-np.inf, 0.0]]))
    np.testing.assert_array_equal(found, [[np.nan, 1.0], [-1.0, 0.0]])
    assert erf(np, np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert erf(np, np.asarray(0.5)).shape == ()
    assert erf(np, np.ones(3, np.float16)).dtype == np.float16


FUSED_BACKEND = NumPyBackend(OneRank())
C, CUBE = np.sqrt(2 / np.pi), 0.044715


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(C * (x + CUBE * x**3)))


def gelu_grad(dy: Any, x: Any, _: Any) -> Any:
    t = np.tanh(C * (x + CUBE * x**3))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * C * (1 + 3 * CUBE * x**2))


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def softmax_backward(dout: Any, out: Any) -> Any:
    return (dout - (dout * out).sum(-1, keepdims=True)) * out


def layer_norm_grad(dout: Any, x: Any, mean: Any, variance: Any, gamma: Any) -> Any:
    inverse = 1 / np.sqrt(variance + 1e-7)
    g, y = dout * gamma, (x - mean) * inverse
    return (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True)) * inverse


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-7) * gamma + beta, mean, variance


FORMULAS: list[tuple[Op, Any, str]] = [
    (GeLU(), gelu, "x"),
    (GeLUGrad(), gelu_grad, "xxx"),
    (Softmax(), softmax, "x"),
    (SoftmaxBackward(), softmax_backward, "xx"),
    (LayerNorm(begin_norm_axis=-1, begin_params_axis=-1), layer_norm, "xcc"),
    (LayerNormGrad(begin_norm_axis=-1), layer_norm_grad, "xxrrc"),
    (AddN(), lambda *inputs: sum(inputs), "xxx"),
    (AddN(), lambda x: x, "x"),
    (Add(), np.add, "xx"),
    (Exp(), np.exp, "x"),
]
CASES = pytest.mark.parametrize(("op", "formula", "roles"), FORMULAS, ids=lambda value: getattr(value, "name", ""))


def operands(roles: str, rows: int, columns: int) -> list[Any]:
    """x: a matrix; c: one number per column; r: one positive number per row."""
    rng = np.random.default_rng(0)
    shapes = {"x": (rows, columns), "c": (columns,), "r": (rows, 1)}
    arrays = [rng.uniform(0.1, 2, shapes[role]) for role in roles]
    return [array - 1 if role == "x" else array for array, role in zip(arrays, roles, strict=True)]


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@CASES
@pytest.mark.parametrize("shape", [(1, 5), (37, 10), (3, 300)])
def test_blocks_equal_the_formula(op: Op, formula: Any, roles: str, shape: tuple[int, int]) -> None:
    inputs = operands(roles, *shape)
    kept = [array.copy() for array in inputs]
    expected = results(formula(*inputs))
    function = op.kernel_into(FUSED_BACKEND)
    assert function is not None
    out = [np.full(array.shape, np.nan) for array in expected]
    returned = results(function(*inputs, out=tuple(out) if len(out) > 1 else out[0]))
    assert all(a is b for a, b in zip(returned, out, strict=True))
    for found in (out, results(op.kernel(FUSED_BACKEND)(*inputs))):
        for array, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12, atol=1e-14)
    assert all(np.array_equal(a, b) for a, b in zip(inputs, kept, strict=True))


@CASES
def test_every_operand_may_hold_the_result(op: Op, formula: Any, roles: str) -> None:
    if not op.in_place:
        return
    for index in [i for i, role in enumerate(roles) if role == "x"]:
        inputs = operands(roles, 37, 10)
        expected = formula(*[array.copy() for array in inputs])
        function = op.kernel_into(FUSED_BACKEND)
        assert function is not None
        function(*inputs, out=inputs[index])
        np.testing.assert_allclose(inputs[index], expected, rtol=1e-12, atol=1e-14)


@CASES
def test_operands_may_be_views_in_another_order(op: Op, formula: Any, roles: str) -> None:
    inputs = operands(roles, 37, 10)
    turned = [np.asfortranarray(array) for array in inputs]
    for found, wanted in zip(results(op.kernel(FUSED_BACKEND)(*turned)), results(formula(*inputs)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_softmax_along_other_axes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for axis in (0, 1, -1, (0, 2), (1, 2)):
        power = np.exp(x - x.max(axis, keepdims=True))
        expected = power / power.sum(axis, keepdims=True)
        found = Softmax(axis).kernel(FUSED_BACKEND)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        out = np.empty_like(x)
        function = Softmax(axis).kernel_into(FUSED_BACKEND)
        assert function is not None
        assert function(x, out=out) is out
        assert np.array_equal(out, found)


def test_empty_tensors() -> None:
    for shape in ((0, 4), (4, 0)):
        assert Softmax().kernel(FUSED_BACKEND)(np.zeros((4, 0))).shape == (4, 0)
        assert GeLU().kernel(FUSED_BACKEND)(np.zeros(shape)).shape == shape


def test_errors_of_a_thread_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 64)
    monkeypatch.setattr(fused, "SHARED", 256)
    monkeypatch.setattr(fused, "thread_count", lambda: 3)

    def work(rows: slice) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fused.in_blocks(np, 64, 64 * 64, work)


@pytest.mark.parametrize(("variable", "count"), [("OPENBLAS_NUM_THREADS", 3), ("OMP_NUM_THREADS", 1)])
def test_threads_are_those_of_blas(variable: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(count))
    assert fused.thread_count.__wrapped__() == count


ELSEWHERE = (
    "control.structural", "collective.collectives", "collective.exchange", "collective.point_to_point",
)  # fmt: skip
WIDE = ("Complex",)
"""Takes no halves, as in MindSpore: the parts of a complex number are at least Float32, and of one type."""
BY_LINES = ("FusedUpdate",)
"""Round the result of every line, as the operators do of which they are made."""
HALF_CASES = [
    (name, index)
    for name, index in samples_of(ELSEWHERE)
    if name not in (*WIDE, *BY_LINES)
    and any(kind == "Float64" for kind in REGISTRY[name].samples[index].dtypes or ("Float64",))
]
ROUNDING = {"BFloat16": 2.0**-8, "Float16": 2.0**-11}
LEAST = {"BFloat16": 2.0**-126, "Float16": 2.0**-24}
"""Below it numbers round to few digits or to zero."""


def computed(op: Any, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(results, operands after the run)."""
    operands = [np.array(array) for array in arrays]
    with np.errstate(all="ignore"):
        out = op.kernel(BACKEND)(*operands)
    return list(out) if isinstance(out, tuple) else [out], operands


@grouped([(*case, half) for case in HALF_CASES for half in (FLOAT16, BFLOAT16)], MANY)
def test_halves_give_the_rounded_float32_result(name: str, index: int, half: DType) -> None:
    op, spec = operator_of(name, index)
    types = types_of(spec, half.name)
    narrow = arrays_of(name, spec, types)
    wide = [a.astype(np.float32) if is_half(a) else a for a in narrow]
    inferred = element_types(op.infer(*types))
    found, changed = computed(op, narrow)
    expected, wide_changed = computed(op, wide)
    assert [(r.shape, r.dtype) for r in found] == [(t.shape, t.dtype.numpy) for t in inferred]
    pairs = list(zip(found, expected, strict=True))
    pairs += [(changed[i], wide_changed[i]) for i in op.mutates]
    for one, other in pairs:
        if other.dtype.kind != "f":
            np.testing.assert_array_equal(one, other)
        else:
            rounding, least = ROUNDING[half.name], LEAST[half.name]
            with np.errstate(over="ignore"):
                rounded = other.astype(half.numpy).astype(np.float32) if is_half(one) else other
            np.testing.assert_allclose(one.astype(np.float32), rounded, rounding, least)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_some_take_no_halves(name: str, half: DType) -> None:
    op, spec = operator_of(name, 0)
    with pytest.raises(TypeError) as refused:
        op.infer(*types_of(spec, half.name))
    assert f"{name}: inputs are {half} and {half}, not both Float32 or Float64" in str(refused.value)


def test_results_of_a_mutated_operand_are_the_operand() -> None:
    variable = np.ones(4, np.float16)
    gradient = np.full(4, 0.25, np.float16)
    made = REGISTRY["AssignAdd"]().kernel(BACKEND)(variable, gradient)
    assert made is variable
    assert variable.tolist() == [1.25] * 4


def test_sums_are_not_taken_in_half_precision() -> None:
    ones = np.ones((4096,), BFLOAT16.numpy)
    total = REGISTRY["ReduceSum"](axis=(0,)).kernel(BACKEND)(ones)
    assert (total.dtype, float(total)) == (BFLOAT16.numpy, 4096.0)


def test_a_backend_without_halves_gets_bare_functions() -> None:
    class Plain:
        xp, comm, step, halves = np, None, 0, False

    assert REGISTRY["Add"]().kernel(Plain()) is np.add
    assert REGISTRY["Add"]().kernel(BACKEND) is not np.add


def test_constants_fold_in_their_own_type() -> None:
    from mspc import Tensor, bfloat16, ops

    found = ops.ReduceSum()(Tensor([1.0, 2.0], bfloat16))
    assert (found.dtype, float(found.asnumpy())) == (bfloat16, 3.0)

"""Operations of StableHLO beside NumPy: elementwise ones, shapes, slices, products, reductions, windows and indices."""

from typing import Any

import numpy as np
import pytest

from mspc.ops.math.xla_functions import XlaFunction
from mspc.readers.stablehlo.kinds.all_kinds import KINDS, STRUCTURAL
from tests.stablehlo_texts import computed, numbers

F = "tensor<3x4xf32>"
X, Y = numbers(3, 4), numbers(3, 4, seed=1)
ELEMENTWISE: dict[str, Any] = {
    "abs %x": np.abs(X), "add %x, %y": X + Y, "atan2 %x, %y": np.arctan2(X, Y), "cbrt %x": np.cbrt(X),
    "ceil %x": np.ceil(X), "clamp %y, %x, %y": Y, "cosine %x": np.cos(X), "divide %x, %y": X / Y,
    "exponential %x": np.exp(X), "exponential_minus_one %x": np.expm1(X), "floor %x": np.floor(X),
    "logistic %x": 1 / (1 + np.exp(-X)), "maximum %x, %y": np.maximum(X, Y), "minimum %x, %y": np.minimum(X, Y),
    "multiply %x, %y": X * Y, "negate %x": -X, "remainder %x, %y": np.fmod(X, Y),
    "round_nearest_afz %x": np.trunc(X + np.copysign(np.float32(0.5), X)), "round_nearest_even %x": np.rint(X),
    "sign %x": np.sign(X), "sine %x": np.sin(X), "subtract %x, %y": X - Y, "tanh %x": np.tanh(X),
    "reduce_precision %x, format = e8m7": X.view(np.uint32) + 0x7FFF + (X.view(np.uint32) >> 16 & 1) & 0xFFFF0000,
}  # fmt: skip
"""Operations of Float32 with their results; those of bits as integers."""


def test_elementwise_operations() -> None:
    body = "".join(f"    %{i} = stablehlo.{text} : {F}\n" for i, text in enumerate(ELEMENTWISE))
    found = computed(body, [(f"%{i}", F) for i in range(len(ELEMENTWISE))], x=X, y=Y)
    for (text, expected), value in zip(ELEMENTWISE.items(), found, strict=True):
        right = expected.view(np.float32) if expected.dtype == np.uint32 else expected
        np.testing.assert_allclose(value, right, rtol=2e-5, atol=1e-6, err_msg=text)


I = "tensor<6xi32>"  # noqa: E741  # the type of integers
A, B = np.array([7, -7, -(2**31), 5, 0, 9], np.int32), np.array([2, 2, -1, 0, 3, 40], np.int32)
INTEGERS: dict[str, list[int]] = {
    "divide %a, %b": [3, -3, -(2**31), -1, 0, 0], "remainder %a, %b": [1, -1, 0, 5, 0, 9],
    "shift_left %a, %b": [28, -28, 0, 5, 0, 0], "shift_right_arithmetic %a, %b": [1, -2, -1, 5, 0, 0],
    "shift_right_logical %a, %b": [1, 1073741822, 0, 5, 0, 0], "popcnt %a": [3, 30, 1, 2, 0, 2],
    "count_leading_zeros %a": [29, 0, 0, 29, 32, 28], "and %a, %b": [2, 0, -(2**31), 0, 0, 8],
    "not %a": [-8, 6, 2**31 - 1, -6, -1, -10],
    "xor %a, %b": [5, -5, 2**31 - 1, 5, 3, 33], "sign %a": [1, -1, -1, 1, 0, 1],
    "multiply %a, %b": [14, -14, -(2**31), 0, 0, 360], "maximum %a, %b": [7, 2, -1, 5, 3, 40],
}  # fmt: skip


def test_integers_wrap_and_divisions_by_zero_have_results() -> None:
    body = "".join(f"    %{i} = stablehlo.{text} : {I}\n" for i, text in enumerate(INTEGERS))
    found = computed(body, [(f"%{i}", I) for i in range(len(INTEGERS))], a=A, b=B)
    assert {text: list(value) for text, value in zip(INTEGERS, found, strict=True)} == INTEGERS


T = numbers(2, 3, 4)
IMAGE, KERNEL = numbers(1, 5, 6, 2), numbers(3, 2, 2, 4, seed=2)


def convolved(image: Any, kernel: Any) -> Any:
    """Return a convolution [batch, rows, columns, features] with kernels [rows, columns, inputs, outputs]."""
    rows, columns = (image.shape[d] - kernel.shape[d - 1] + 1 for d in (1, 2))
    return sum(
        np.einsum("brci,io->brco", image[:, i : i + rows, j : j + columns], kernel[i, j])
        for i in range(kernel.shape[0]) for j in range(kernel.shape[1])
    )  # fmt: skip


DIMS = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
CASES: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("stablehlo.transpose %t, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>", "tensor<4x2x3xf32>",
     T.transpose(2, 0, 1), {"t": T}),
    ("stablehlo.slice %t [0:1, 1:3, 0:4:2] : (tensor<2x3x4xf32>) -> tensor<1x2x2xf32>", "tensor<1x2x2xf32>",
     T[0:1, 1:3, ::2], {"t": T}),
    ("stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<3x4xf32>) -> tensor<4x2x3xf32>", "tensor<4x2x3xf32>",
     np.broadcast_to(X.T[:, None], (4, 2, 3)), {"x": X}),
    ("stablehlo.pad %x, %v, low = [1, -1], high = [0, 2], interior = [1, 0] : (tensor<3x4xf32>, tensor<f32>) -> "
     "tensor<6x5xf32>", "tensor<6x5xf32>",
     np.pad(np.insert(X, [1, 2], 2.5, 0)[:, 1:], ((1, 0), (0, 2)), constant_values=2.5),
     {"x": X, "v": np.array(2.5, np.float32)}),
    ("stablehlo.concatenate %x, %y, dim = 1 : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>",
     "tensor<3x8xf32>", np.concatenate([X, Y], 1), {"x": X, "y": Y}),
    ("stablehlo.reverse %x, dims = [0, 1] : tensor<3x4xf32>", F, X[::-1, ::-1], {"x": X}),
    ("stablehlo.convert %x : (tensor<3x4xf32>) -> tensor<3x4xi32>", "tensor<3x4xi32>", X.astype(np.int32), {"x": X}),
    ("stablehlo.bitcast_convert %x : (tensor<3x4xf32>) -> tensor<3x4xi32>", "tensor<3x4xi32>", X.view(np.int32),
     {"x": X}),
    ("stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> "
     "tensor<2x3xf32>", "tensor<2x3xf32>", X[1:3, 1:4],
     {"x": X, "i": np.array(9, np.int32), "j": np.array(1, np.int32)}),
    ("stablehlo.dot_general %t, %u, batching_dims = [0] x [1], contracting_dims = [2] x [0] : (tensor<2x3x4xf32>, "
     "tensor<4x2x5xf32>) -> tensor<2x3x5xf32>", "tensor<2x3x5xf32>", np.einsum("bmk,kbn->bmn", T, numbers(4, 2, 5)),
     {"t": T, "u": numbers(4, 2, 5)}),
    (f"stablehlo.convolution(%i, %k) {DIMS}, window = {{pad = [[1, 1], [0, 2]], stride = [2, 1]}} "
     "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x5x6x2xf32>, tensor<3x2x2x4xf32>) -> "
     "tensor<1x3x7x4xf32>", "tensor<1x3x7x4xf32>",
     convolved(np.pad(IMAGE, ((0, 0), (1, 1), (0, 2), (0, 0))), KERNEL)[:, ::2], {"i": IMAGE, "k": KERNEL}),
    (f"stablehlo.convolution(%i, %k) {DIMS}, window = {{lhs_dilate = [2, 1], reverse = [true, false]}} "
     "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x5x6x2xf32>, tensor<3x2x2x4xf32>) -> "
     "tensor<1x7x5x4xf32>", "tensor<1x7x5x4xf32>",
     convolved(np.insert(IMAGE, [1, 2, 3, 4], 0, 1), KERNEL[::-1]), {"i": IMAGE, "k": KERNEL}),
)  # fmt: skip


@pytest.mark.parametrize(("operation", "type", "expected", "arrays"), CASES)
def test_shapes_and_products(operation: str, type: str, expected: Any, arrays: dict[str, Any]) -> None:
    (found,) = computed(f"    %0 = {operation}", [("%0", type)], **arrays)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_factorizations_by_lapack() -> None:
    square, sides = "tensor<2x3x3xf32>", "tensor<2x3xf32>"
    x = numbers(2, 3, 3) @ numbers(2, 3, 3).swapaxes(-1, -2) + 4 * np.eye(3, dtype=np.float32)
    body = "".join(
        f"    {name} = stablehlo.custom_call @lapack_s{routine}_ffi({given}) {{mhlo.backend_config = {{{options}}}}} : "
        f"({types}) -> ({results})\n" for name, routine, given, options, types, results in (
            ("%c:2", "potrf", "%x", "uplo = 76 : ui8", square, f"{square}, tensor<2xi32>"),
            ("%e:3", "syevd", "%x", "mode = 86 : ui8, uplo = 76 : ui8", square, f"{square}, {sides}, tensor<2xi32>"),
            ("%q:2", "geqrf", "%x", "", square, f"{square}, {sides}"),
            ("%o", "orgqr", "%q#0, %q#1", "", f"{square}, {sides}", square)))  # fmt: skip
    names = [("%c#0", square), ("%e#0", square), ("%e#1", sides), ("%q#0", square), ("%o", square)]
    factor, vectors, values, upper, orthogonal = computed(body, names, x=x)
    for found in (factor @ factor.swapaxes(-1, -2), vectors * values[:, None] @ vectors.swapaxes(-1, -2),
                  orthogonal @ np.triu(upper)):  # fmt: skip
        np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def region(operation: str, type: str = "f32") -> str:
    """Return a region that puts two numbers together."""
    return (f"({{\n    ^bb0(%p: tensor<{type}>, %q: tensor<{type}>):\n      %r = stablehlo.{operation} %p, %q : "
            f"tensor<{type}>\n      stablehlo.return %r : tensor<{type}>\n    }})")  # fmt: skip


def test_windows() -> None:
    body = f"""    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%x, %z) <{{padding = dense<[[0, 0], [3, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 4>}}> {region("add")} : (tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
    %1 = "stablehlo.reduce_window"(%x, %m) <{{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>}}> {region("maximum")} : (tensor<3x4xf32>, tensor<f32>) -> tensor<2x2xf32>
    %2 = "stablehlo.select_and_scatter"(%x, %1, %z) <{{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 1, 2>}}> ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.compare GE, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %r : tensor<i1>
    }}, {region("add")[1:-1]}) : (tensor<3x4xf32>, tensor<2x2xf32>, tensor<f32>) -> tensor<3x4xf32>
"""  # noqa: E501  # one operation has one line
    found = computed(body, [("%0", F), ("%1", "tensor<2x2xf32>"), ("%2", F)], x=X)
    windows = np.lib.stride_tricks.sliding_window_view(X, (2, 2))[:, ::2].reshape(2, 2, 4)
    spread = np.zeros_like(X)
    for i, j in np.ndindex(2, 2):
        at = int(windows[i, j].argmax())
        spread[i + at // 2, 2 * j + at % 2] += windows[i, j].max()
    for value, right in zip(found, (np.cumsum(X, 1), windows.max(-1), spread), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


def test_sorts_and_the_greatest() -> None:
    body = """    %i = stablehlo.iota dim = 1 : tensor<3x4xi32>
    %0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<i32>, %s: tensor<i32>):
      %c = stablehlo.compare GT, %p, %q, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }) : (tensor<3x4xf32>, tensor<3x4xi32>) -> (tensor<3x4xf32>, tensor<3x4xi32>)
    %1:2 = chlo.top_k(%x, k = 2) : tensor<3x4xf32> -> (tensor<3x2xf32>, tensor<3x2xi32>)
"""
    order = np.argsort(-X, 1).astype(np.int32)
    found = computed(body, [("%0#0", F), ("%0#1", "tensor<3x4xi32>"), ("%1#0", "tensor<3x2xf32>"),
                            ("%1#1", "tensor<3x2xi32>")], x=X)  # fmt: skip
    for value, right in zip(found, (-np.sort(-X, 1), order, -np.sort(-X, 1)[:, :2], order[:, :2]), strict=True):
        np.testing.assert_array_equal(value, right)


ROWS = np.array([2, 0, 7, -1, 2], np.int32)


def test_lookups_in_tables_and_their_gradients() -> None:
    """Starts outside of a table are moved into it; updates outside are left out."""
    where = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    back = ("update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
            "index_vector_dim = 1")  # fmt: skip
    pair = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1"
    own = ("collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], "
           "start_index_map = [1], index_vector_dim = 2")  # fmt: skip
    body = f"""    %j = stablehlo.reshape %i : (tensor<5xi32>) -> tensor<5x1xi32>
    %k = stablehlo.concatenate %j, %j, dim = 1 : (tensor<5x1xi32>, tensor<5x1xi32>) -> tensor<5x2xi32>
    %l = stablehlo.slice %i [0:3] : (tensor<5xi32>) -> tensor<3xi32>
    %m = stablehlo.reshape %l : (tensor<3xi32>) -> tensor<3x1x1xi32>
    %0 = "stablehlo.gather"(%x, %j) <{{dimension_numbers = #stablehlo.gather<{where}>, slice_sizes = array<i64: 1, 4>}}> : (tensor<3x4xf32>, tensor<5x1xi32>) -> tensor<5x4xf32>
    %1 = "stablehlo.gather"(%x, %k) <{{dimension_numbers = #stablehlo.gather<{pair}>, slice_sizes = array<i64: 1, 2>}}> : (tensor<3x4xf32>, tensor<5x2xi32>) -> tensor<5x2xf32>
    %2 = "stablehlo.gather"(%x, %m) <{{dimension_numbers = #stablehlo.gather<{own}>, slice_sizes = array<i64: 1, 1>}}> : (tensor<3x4xf32>, tensor<3x1x1xi32>) -> tensor<3x1xf32>
    %3 = "stablehlo.scatter"(%x, %j, %0) <{{scatter_dimension_numbers = #stablehlo.scatter<{back}>}}> {region("add")} : (tensor<3x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<3x4xf32>
    %4 = "stablehlo.scatter"(%x, %j, %0) <{{scatter_dimension_numbers = #stablehlo.scatter<{back}>}}> {region("maximum")} : (tensor<3x4xf32>, tensor<5x1xi32>, tensor<5x4xf32>) -> tensor<3x4xf32>
"""  # noqa: E501  # one operation has one line
    found = computed(body, [("%0", "tensor<5x4xf32>"), ("%1", "tensor<5x2xf32>"), ("%2", "tensor<3x1xf32>"), ("%3", F),
                            ("%4", F)], x=X, i=ROWS)  # fmt: skip
    rows, columns = np.clip(ROWS, 0, 2), np.clip(ROWS, 0, 2)
    summed, greatest = X.copy(), X.copy()
    for row, update in zip(ROWS, X[rows], strict=True):
        if 0 <= row < 3:
            summed[row] += update
            greatest[row] = np.maximum(greatest[row], update)
    pairs = np.stack([X[r, c : c + 2] for r, c in zip(rows, columns, strict=True)])
    alone = X[np.arange(3), np.clip(ROWS[:3], 0, 3)][:, None]
    for value, right in zip(found, (X[rows], pairs, alone, summed, greatest), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_complex_numbers() -> None:
    z, w = (X + 1j * Y).astype(np.complex64), (Y - 2j * X).astype(np.complex64)
    c = "tensor<3x4xcomplex<f32>>"
    body = f"""    %0 = stablehlo.multiply %z, %w : {c}
    %1 = stablehlo.abs %z : ({c}) -> {F}
    %2 = stablehlo.dot_general %z, %w, contracting_dims = [1] x [1] : ({c}, {c}) -> tensor<3x3xcomplex<f32>>
    %3 = stablehlo.fft %z, type = FFT, length = [4] : ({c}) -> {c}
    %4 = stablehlo.exponential %z : {c}
"""
    found = computed(body, [("%0", c), ("%1", F), ("%2", "tensor<3x3xcomplex<f32>>"), ("%3", c), ("%4", c)], z=z, w=w)
    for value, right in zip(found, (z * w, np.abs(z), z @ w.T, np.fft.fft(z), np.exp(z)), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-4)


def test_sizes_in_operands_are_known_at_compile_time() -> None:
    body = """    %n = stablehlo.constant dense<[4, 3]> : tensor<2xi32>
    %b = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
    %e = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
    %s = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
    %0 = stablehlo.dynamic_reshape %x, %n : (tensor<3x4xf32>, tensor<2xi32>) -> tensor<4x3xf32>
    %1 = stablehlo.real_dynamic_slice %x, %b, %e, %s : (tensor<3x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>
"""  # noqa: E501  # one operation has one line
    found = computed(body, [("%0", "tensor<4x3xf32>"), ("%1", "tensor<2x2xf32>")], x=X)
    np.testing.assert_array_equal(found[0], X.reshape(4, 3))
    np.testing.assert_array_equal(found[1], X[1:3, ::2])


def test_the_table_has_the_kinds_that_programs_use() -> None:
    assert len([name for name in (*KINDS, *STRUCTURAL) if "." not in name and name not in ("call", "return")]) >= 82


@pytest.mark.parametrize(("name", "options"), [("bitcast_convert", ("int32",)), ("reverse", ((0,),))])
def test_results_of_functions_have_memory_of_their_own(name: str, options: tuple[Any, ...]) -> None:
    """The memory of an operand is used again after its last reader: a view of it would be overwritten."""
    x = numbers(4)
    assert not np.may_share_memory(XlaFunction(name, options).compute(np, x), x)

"""Elementwise operations as XLA computes them, in NumPy: integers wrap, shifts by all bits and divisions by zero have
results. Compilers fold constants with them, and regions of reductions are programs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = Any
Program = tuple[tuple[tuple[Any, ...], ...], tuple[int, ...]]
"""(instructions, numbers of the results). An instruction is (name, numbers of operands, settings); the arguments have
the first numbers, and each instruction defines the next one."""


def _in_float32(x: Array) -> Array:
    """Return halves converted to Float32, which is exact; other arrays unchanged."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x


def rounded(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that computes halves in Float32 and rounds the result."""

    def run(*operands: Array) -> Array:
        dtype = operands[0].dtype
        found = function(*map(_in_float32, operands))
        is_wider = found.dtype != dtype and dtype.itemsize == 2 and found.dtype.kind == "f"
        return found.astype(dtype) if is_wider else found

    run.__name__ = function.__name__
    return run


def divide(a: Array, b: Array) -> Array:
    """Divide; integers towards zero, by zero with all bits set."""
    if a.dtype.kind not in "iu":
        return a / b
    zero = b == 0
    safe = np.where(zero, np.ones_like(b), b)
    found = a // safe
    if a.dtype.kind == "i":
        found = found + (((a - found * safe) != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(zero, np.array(-1).astype(a.dtype), found)


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of the dividend; of a division of integers by zero the dividend."""
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a, a - divide(a, b) * b)


def power(a: Array, b: Array) -> Array:
    """Return powers; of integers with a negative exponent 1, -1 or 0."""
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    found = np.power(a, np.where(b < 0, np.zeros_like(b), b))
    sign = np.where((b & np.array(1, b.dtype)) != 0, a, np.ones_like(a))
    return np.where(b < 0, np.where(a == 1, a, np.where(a == np.array(-1).astype(a.dtype), sign, 0 * a)), found)


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(x.shape).view(np.dtype(f"u{x.dtype.itemsize}"))


def shift_left(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    inside = _unsigned(b) < bits
    return np.where(inside, a << np.where(inside, b, np.zeros_like(b)), np.zeros_like(a))


def shift_right_logical(a: Array, b: Array) -> Array:
    bits, by = 8 * a.dtype.itemsize, _unsigned(b)
    inside = by < bits
    found = _unsigned(a) >> np.where(inside, by, np.zeros_like(by))
    return np.where(inside, found, np.zeros_like(found)).astype(found.dtype).view(a.dtype)


def shift_right_arithmetic(a: Array, b: Array) -> Array:
    most = 8 * a.dtype.itemsize - 1
    by = np.minimum(_unsigned(b), np.array(most, _unsigned(b).dtype)).astype(a.dtype)
    if a.dtype.kind == "i":
        return a >> by
    signed = f"i{a.dtype.itemsize}"
    return (a.view(signed) >> by.view(signed)).view(a.dtype)


def popcnt(x: Array) -> Array:
    """Return the number of bits that are set."""
    rows = np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(-1, x.dtype.itemsize)
    return np.unpackbits(rows, axis=-1).sum(-1).astype(x.dtype).reshape(x.shape)


def count_leading_zeros(x: Array) -> Array:
    """Return the number of zeros before the first bit that is set."""
    rows = _unsigned(x).astype(f">u{x.dtype.itemsize}").reshape(-1).view(np.uint8).reshape(-1, x.dtype.itemsize)
    bits = np.unpackbits(rows, axis=-1)
    found = np.where(bits.any(-1), bits.argmax(-1), 8 * x.dtype.itemsize)
    return found.astype(x.dtype).reshape(x.shape)


def sign(x: Array) -> Array:
    if x.dtype.kind == "c":
        size = np.abs(x)
        return np.where(size == 0, np.zeros_like(x), x / np.where(size == 0, np.ones_like(size), size))
    return np.copysign(np.sign(x), x) if x.dtype.kind == "f" else np.sign(x)


def round_nearest_afz(x: Array) -> Array:
    """Round to the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(np.ones_like(x), x), whole)


def logistic(x: Array) -> Array:
    if x.dtype.kind == "c":
        return 1 / (1 + np.exp(-x))
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def atan2(y: Array, x: Array) -> Array:
    if y.dtype.kind != "c":
        return np.arctan2(y, x)
    return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))


def total_order(x: Array) -> Array:
    """Return integers in the total order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{x.dtype.itemsize}")
    most = np.array(np.iinfo(bits.dtype).max, bits.dtype)
    return np.where(bits < 0, bits ^ most, bits)


ORDERS: Mapping[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


def compare(a: Array, b: Array, direction: str, kind: str = "") -> Array:
    if kind == "TOTALORDER" and a.dtype.kind in "fV":
        a, b = total_order(a), total_order(b)
    return ORDERS[direction](a, b)


def convert(x: Array, dtype: Any) -> Array:
    """Return converted numbers: floats are truncated and saturated to an integer type, NaN becomes 0."""
    dtype = np.dtype(_numpy_name(dtype))
    x = x.real if x.dtype.kind == "c" and dtype.kind != "c" else x
    if dtype.kind == "b":
        return x != 0
    if dtype.kind not in "iu" or x.dtype.kind not in "fV":
        return x.astype(dtype)
    ends = np.iinfo(dtype)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = np.where((wide > float(ends.min)) & (wide < float(ends.max)), wide, 0.0).astype(dtype)
    low = np.where(wide <= float(ends.min), ends.min, inside)
    return np.where(wide >= float(ends.max), ends.max, low).astype(dtype)


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Return floats rounded to fewer bits, those that are too large as infinities, too small as zeros."""
    dtype = x.dtype
    wide = x.astype(np.float64) if dtype.itemsize < 8 else x
    fraction, exponent = np.frexp(wide)
    scale = 2.0 ** (mantissa_bits + 1)
    found = np.ldexp(np.rint(fraction * scale) / scale, exponent)
    bias = 2 ** (exponent_bits - 1) - 1
    _, exponent = np.frexp(found)
    found = np.where(exponent - 1 > bias, np.copysign(np.inf, wide), found)
    found = np.where(exponent - 1 < 1 - bias, np.copysign(0.0, wide), found)
    return np.where(np.isfinite(wide) & (wide != 0), found, wide).astype(dtype)


def clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(low, x), high)


def bitcast_convert(x: Array, dtype: Any) -> Array:
    """Return the same bits as elements of another type; of another size along one more or one dimension less."""
    dtype = np.dtype(_numpy_name(dtype))
    shape = x.shape
    if dtype.itemsize < x.dtype.itemsize:
        shape = (*shape, x.dtype.itemsize // dtype.itemsize)
    elif dtype.itemsize > x.dtype.itemsize:
        shape = shape[:-1]
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)


def nextafter(a: Array, b: Array) -> Array:
    """Return the neighbour of a in the direction of b."""
    if a.dtype.kind == "f" and a.dtype.itemsize > 2:
        return np.nextafter(a, b)
    bits, wide, towards = a.view(np.int16), a.astype(np.float32), b.astype(np.float32)
    up = (towards > wide) == (wide > 0)
    step = np.where(up, bits + 1, bits - 1).astype(np.int16)
    tiny = np.where(towards > 0, 1, -32767).astype(np.int16)
    found = np.where(wide == towards, b.view(np.int16), np.where(wide == 0, tiny, step)).astype(np.int16).view(a.dtype)
    return np.where(np.isnan(wide) | np.isnan(towards), np.array(np.nan).astype(a.dtype), found)


def complex_number(a: Array, b: Array) -> Array:
    return (a + 1j * b).astype(np.complex128 if a.dtype == np.float64 else np.complex64)


def _either(of_bools: Callable[..., Array], of_numbers: Callable[..., Array]) -> Callable[..., Array]:
    def run(*operands: Array) -> Array:
        return (of_bools if operands[0].dtype == bool else of_numbers)(*operands)

    run.__name__ = of_numbers.__name__
    return run


ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "abs": rounded(np.abs), "add": rounded(_either(np.logical_or, np.add)), "and": _either(np.logical_and,
    np.bitwise_and), "atan2": rounded(atan2), "cbrt": rounded(np.cbrt), "ceil": rounded(np.ceil), "clamp": clamp,
    "compare": compare, "complex": complex_number,
    "convert": convert, "cosine": rounded(np.cos), "count_leading_zeros": count_leading_zeros,
    "divide": rounded(divide), "exponential": rounded(np.exp), "exponential_minus_one": rounded(np.expm1),
    "floor": rounded(np.floor), "imag": lambda x: x.imag if x.dtype.kind == "c" else np.zeros_like(x),
    "is_finite": lambda x: np.isfinite(_in_float32(x)), "log": rounded(np.log), "log_plus_one": rounded(np.log1p),
    "logistic": rounded(logistic), "maximum": _either(np.logical_or, np.maximum),
    "minimum": _either(np.logical_and, np.minimum), "multiply": rounded(_either(np.logical_and, np.multiply)),
    "negate": np.negative, "not": _either(np.logical_not, np.invert), "or": _either(np.logical_or, np.bitwise_or),
    "popcnt": popcnt, "power": rounded(power), "real": lambda x: x.real if x.dtype.kind == "c" else x,
    "reduce_precision": reduce_precision, "remainder": rounded(remainder),
    "round_nearest_afz": rounded(round_nearest_afz), "round_nearest_even": rounded(np.rint),
    "rsqrt": rounded(lambda x: 1 / np.sqrt(x)), "select": np.where, "shift_left": shift_left,
    "shift_right_arithmetic": shift_right_arithmetic, "shift_right_logical": shift_right_logical,
    "sign": rounded(sign), "sine": rounded(np.sin), "sqrt": rounded(np.sqrt), "subtract": rounded(np.subtract),
    "tan": rounded(np.tan), "tanh": rounded(np.tanh), "xor": _either(np.logical_xor, np.bitwise_xor),
    "next_after": nextafter, "bitcast_convert": bitcast_convert,
    **{name: rounded(getattr(np, f"arc{name[1:]}")) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh")},
    "cosh": rounded(np.cosh), "sinh": rounded(np.sinh),
}  # fmt: skip
"""NumPy functions of the operations, by the operations' names without their dialect."""

NAMES: Mapping[str, str] = {
    function.__name__: name
    for name, function in ELEMENTWISE.items()
    if function.__name__ not in ("<lambda>", "remainder")
}
"""The operations by the names of NumPy's functions."""


def run_program(
    program: Program, arguments: Sequence[Array], functions: Mapping[str, Callable[..., Array]] = ELEMENTWISE
) -> list[Array]:  # fmt: skip
    """Return the results of a region's program for arrays of one shape."""
    instructions, results = program
    values = list(arguments)
    for name, operands, settings in instructions:
        if name == "constant":
            dtype, digits = settings
            values.append(np.frombuffer(bytes.fromhex(digits), np.dtype(_numpy_name(dtype))).reshape(()))
        else:
            values.append(functions[name](*(values[i] for i in operands), *settings))
    return [values[i] for i in results]


def _numpy_name(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes  # late: only programs in bfloat16 need it

        return ml_dtypes.bfloat16
    return name

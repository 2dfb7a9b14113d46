"""Kinds of ATen that work element by element, complex ones too."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import BOOL, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALVES, real_of
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.mint.nn import functional
from mspc.readers.pytorch.kinds.complex_numbers import by_parts, is_complex, of_either, of_parts, raised
from mspc.readers.pytorch.kinds.creation import complex_number
from mspc.readers.pytorch.kinds.kind import row


def divide(self: Any, other: Any, rounding_mode: Any = None) -> Any:
    """self / other, of integers floating point, or rounded down or towards zero."""
    if rounding_mode == "floor":
        return ops.FloorDiv()(self, other)
    return ops.div(*of_numbers(self, other), rounding_mode=rounding_mode)


def power(self: Any, exponent: Any) -> Any:
    """self to the power of a tensor or a number; squares and roots by operators of their own."""
    if isinstance(exponent, (int, float)) and self.dtype.is_float:
        if exponent == 2:
            return ops.Square()(self)
        if exponent == 0.5:
            return ops.Sqrt()(self)
        if exponent == -0.5:
            return ops.Rsqrt()(self)
    if not isinstance(exponent, (int, float)) and exponent.dtype.is_integer and (
        isinstance(self, int) or (not isinstance(self, float) and self.dtype.is_integer)
    ):  # integers have powers below 0 as fractions rounded towards 0
        size = ops.Abs()(exponent)
        found = ops.Pow()(self, size)
        alone = ops.LogicalOr()(ops.Equal()(found, 1), ops.Equal()(found, -1))
        return ops.where(ops.LogicalOr()(ops.GreaterEqual()(exponent, 0), alone), found, ops.zeros_like(found))
    return ops.Pow()(self, exponent)


def bits(operator: Any, logical: Any) -> Any:
    """Return a function of two that applies an operator of bits, to Bool that of truths, in any order."""

    def of(self: Any, other: Any) -> Any:
        first, second = (other, self) if isinstance(self, int) else (self, other)
        return (logical if first.dtype == BOOL else operator)()(first, second)

    return of


def among(elements: Any, test_elements: Any, invert: Any) -> Any:
    """Return whether each element is one of others."""
    others = ops.Reshape()(test_elements, (-1,))
    met = ops.ReduceAny()(ops.Equal()(ops.ExpandDims()(elements, -1), others), -1)
    return ops.LogicalNot()(met) if invert else met


def clamped(self: Any, min: Any = None, max: Any = None) -> Any:
    """Return self within limits, if there are any. Self has the gradient of equal numbers; a limit of NaN gives NaN."""
    limits = [each for each in (min, max) if each is not None]
    if not all([is_like(each, self) for each in limits]):
        return ops.clamp(self, min, max)
    found = self
    if min is not None and max is not None:  # of equal limits neither has the gradient
        min = ops.where(ops.Less()(min, max), min, ops.stop_gradient(min))
    if min is not None:
        found = ops.where(ops.LogicalOr()(ops.Less()(found, min), ops.IsNan()(min)), min, found)
    if max is not None:
        found = ops.where(ops.LogicalOr()(ops.Greater()(found, max), ops.IsNan()(max)), max, found)
    return found


def quantized(self: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
    """Return the nearest (n - zero) * scale with an integer n from low to high. Self has the gradient within them."""
    zero = zero if isinstance(zero, int) else ops.cast(zero, self.dtype)
    n = ops.Rint()(self * (1.0 / scale)) + zero
    kept = ops.where(ops.Equal()(n, ops.clamp(n, low, high)), self, ops.zeros_like(self))
    return ops.stop_gradient((ops.clamp(n, low, high) - zero) * scale) + (kept - ops.stop_gradient(kept))


def quantized_channels(self: Any, scale: Any, zero: Any, axis: Any, low: Any, high: Any) -> Any:
    """Return the same with a scale and a zero for every place along a dimension."""
    shape = tuple([-1 if d == axis else 1 for d in range(len(self.shape))])
    return quantized(self, ops.Reshape()(scale, shape), ops.Reshape()(zero, shape), low, high)


def is_like(value: Any, other: Any) -> Any:
    """Return whether a value is a tensor of another one's floating-point type."""
    return not isinstance(value, (int, float)) and other.dtype.is_float and value.dtype == other.dtype


def further(operator: Any, comparison: Any, self: Any, other: Any) -> Any:
    """Return the greater or the lesser number, of a number and NaN the number. Self has the gradient of equal ones."""
    if not is_like(other, self):
        return operator(self, other)
    return ops.where(ops.LogicalOr()(comparison()(self, other), ops.IsNan()(other)), self, other)


def log_of_two(self: Any, other: Any) -> Any:
    """Return the logarithm of the sum of two exponentials; of complex numbers beside that of the greater real part."""
    if not self.dtype.is_complex:
        return ops.logaddexp(self, other)
    is_first = ops.GreaterEqual()(ops.Real()(self), ops.Real()(other))
    most, least = ops.where(is_first, self, other), ops.where(is_first, other, self)
    return most + of_either(ops.Log1p(), "log1p")(of_either(ops.Exp(), "exp")(least - most))


def between(self: Any, end: Any, weight: Any) -> Any:
    """Return self + weight (end - self), from the nearer one, so that the ends are exact."""
    apart = end - self
    if isinstance(weight, complex):
        return self + apart * complex_number(weight, (), self.dtype)
    if self.dtype.is_complex:
        return self + apart * weight
    if isinstance(weight, (int, float)):
        return self + apart * weight if abs(weight) < 0.5 else end - apart * (1 - weight)
    return ops.where(ops.Less()(ops.Abs()(weight), 0.5), self + apart * weight, end - apart * (1 - weight))


def widened(operator: Any) -> Any:
    """Return an operator of two that computes halves in Float32, as their rounded operands may be at a step of it."""

    def of(self: Any, other: Any) -> Any:
        return operator()(*[ops.cast(x, FLOAT32) if hasattr(x, "dtype") and x.dtype in HALVES else x
                            for x in (self, other)])  # fmt: skip

    return of


def derivative_of_digamma(n: Any, self: Any) -> Any:
    """Return the n-th derivative of digamma, which is infinite at 0 and at the integers below it."""
    x = self if self.dtype.is_float else ops.cast(self, FLOAT32)
    if n == 0:
        return ops.polygamma(n, x)
    pole = ops.LogicalAnd()(ops.LessEqual()(x, 0), ops.Equal()(x, ops.Floor()(x)))
    return ops.where(pole, ops.full_like(x, math.inf * (-1) ** (n + 1)), ops.polygamma(n, x))


def log_odds(self: Any, eps: Any) -> Any:
    """Return log(x / (1 - x)), of x within [eps, 1 - eps]; its gradient at 0 and 1 is infinite."""
    if not self.dtype.is_float:
        return ops.logit(self, eps)
    x = self if eps is None else ops.clamp(self, eps, 1 - eps)
    return ops.Log()(x) - ops.Log()(1 - x)


def filled(self: Any, mask: Any, value: Any) -> Any:
    """Return the tensor with `value` in the places of the mask."""
    if isinstance(value, (int, float)):  # a cast would round it to Float32 first
        value = ops.Fill()(self.dtype, (), value if self.dtype.is_float else self.dtype.numpy.type(value).item())
    return ops.masked_fill(self, mask, ops.cast(value, self.dtype))


def shifted(operator: Any) -> Any:
    """Return a function that moves bits by as many places as a tensor or a number says."""
    return lambda self, other: operator()(self, ops.cast(other, self.dtype))


def of_floats(operator: Any) -> Any:
    """Return a function of floats, which integers and Bool are made first."""
    return lambda self: operator()(self if self.dtype.is_float or self.dtype.is_complex else ops.cast(self, FLOAT32))


def leaking(self: Any, weight: Any) -> Any:
    """Return the elements, those below 0 times a weight of their channel."""
    slopes = weight if weight.shape else ops.Reshape()(weight, (1,))
    if self.shape:
        return ops.prelu(self, slopes)
    return ops.Reshape()(ops.prelu(ops.Reshape()(self, (1,)), slopes), ())


def elu(self: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
    """Return scale * x, and scale * alpha * (exp(x * input_scale) - 1) below 0."""
    if input_scale == 1:
        found = ops.elu(self, float(alpha))
        return found if scale == 1 else found * scale
    below = ops.Expm1()(ops.Minimum()(self, 0) * input_scale) * (alpha * scale)
    return ops.where(ops.LessEqual()(self, 0), below, self * scale)


def sign(self: Any) -> Any:
    """Return the sign; of a complex number the one of length 1 in its direction, of Bool itself."""
    return self if self.dtype == BOOL else ops.sgn(self)


def entropy(self: Any) -> Any:
    """-x log(x), and no number is as small as that of one below 0."""
    self = self if self.dtype.is_float else ops.cast(self, FLOAT32)
    return ops.where(ops.Less()(self, 0), ops.full_like(self, float("-inf")), ops.Neg()(ops.xlogy(self, self)))


def direction_of(self: Any, other: Any) -> Any:
    """Return the angle of a point; no gradient goes through that of the origin."""
    origin = ops.LogicalAnd()(ops.Equal()(self, 0), ops.Equal()(other, 0))
    rest = ops.Atan2()(ops.where(origin, ops.zeros_like(self), self), ops.where(origin, ops.ones_like(other), other))
    return ops.where(origin, ops.stop_gradient(ops.Atan2()(self, other)), rest)


def times_log(logarithm: Any, least: Any) -> Any:
    """Return a function of tensors or a number: the first times a logarithm of the second, and 0 if the first is 0 and
    there is no logarithm, at `least` and below; the logarithm of one more is 0."""

    def times(self: Any, other: Any) -> Any:
        self = ops.full_like(other, self) if isinstance(self, (int, float)) else self
        other = ops.full_like(self, other) if isinstance(other, (int, float)) else other
        nothing = ops.LogicalAnd()(ops.Equal()(self, 0), ops.LessEqual()(other, least))
        return self * logarithm()(ops.where(nothing, ops.full_like(other, least + 1), other))

    return times


def of_one(operator: Any) -> Any:
    """Return a function that applies an operator to a tensor."""
    return lambda self: operator()(self)


def of_numbers(self: Any, other: Any) -> Any:
    """Return two operands; a complex number becomes a tensor of the other one's size of numbers."""
    if not isinstance(other, complex):
        return self, other
    return self, complex_number(other, (), COMPLEX128 if self.dtype in (FLOAT64, COMPLEX128) else COMPLEX64)


UNARY = {
    "neg.default negative.default": ops.Neg, "sqrt.default": ops.Sqrt,
    "rsqrt.default": ops.Rsqrt, "reciprocal.default": ops.Reciprocal,
    "exp.default": ops.Exp, "expm1.default": ops.Expm1, "log.default": ops.Log, "log1p.default": ops.Log1p,
    "sin.default": ops.Sin, "cos.default": ops.Cos, "tan.default": ops.Tan, "asin.default": ops.Asin,
    "acos.default": ops.ACos, "atan.default": ops.Atan, "sinh.default": ops.Sinh, "cosh.default": ops.Cosh,
    "erf.default": ops.Erf, "isnan.default": ops.IsNan, "isinf.default": ops.IsInf, "isfinite.default": ops.IsFinite,
    "relu.default": ops.ReLU, "silu.default": ops.SiLU, "acosh.default": ops.Acosh,
    "asinh.default": ops.Asinh, "atanh.default": ops.Atanh, "erfc.default": ops.Erfc, "erfinv.default": ops.Erfinv,
    "lgamma.default": ops.Lgamma, "digamma.default": ops.Digamma,
}  # fmt: skip
"""Kinds that are an operator of one tensor."""
BINARY = {
    "mul.Tensor mul.Scalar multiply.Tensor": ops.Mul, "floor_divide.default floor_divide.Scalar": ops.FloorDiv,
    "maximum.default max.other": ops.Maximum,
    "minimum.default min.other": ops.Minimum, "eq.Tensor eq.Scalar": ops.Equal, "ne.Tensor ne.Scalar": ops.NotEqual,
    "lt.Tensor lt.Scalar": ops.Less, "le.Tensor le.Scalar": ops.LessEqual, "gt.Tensor gt.Scalar": ops.Greater,
    "ge.Tensor ge.Scalar": ops.GreaterEqual,
}  # fmt: skip
"""Kinds that are an operator of two."""
NAMED_ALIKE = """
    exp2 log2 log10 floor ceil round trunc selu mish hardswish hardsigmoid sinc frac signbit deg2rad rad2deg
    isposinf isneginf isreal
""".split()
"""Kinds of one tensor that mspc has as functions of the same names."""

ELEMENTWISE = (
    *(row(names, "self", of_one(operator)) for names, operator in UNARY.items()),
    *(row(names, "self, other", lambda self, other, operator=operator: operator()(*of_numbers(self, other)))
      for names, operator in BINARY.items()),
    *(row(f"{name}.default", "self", getattr(ops, name)) for name in NAMED_ALIKE),
    row("add.Tensor add.Scalar", "self, other, alpha=1",
        lambda self, other, alpha: mint.add(*of_numbers(self, other), alpha=alpha)),
    row("sub.Tensor sub.Scalar subtract.Tensor", "self, other, alpha=1",
        lambda self, other, alpha: mint.sub(*of_numbers(self, other), alpha=alpha)),
    row("rsub.Scalar rsub.Tensor", "self, other, alpha=1",
        lambda self, other, alpha: of_numbers(self, other)[1] - self * alpha),
    row("div.Tensor div.Scalar divide.Tensor", "self, other", divide),
    row("div.Tensor_mode div.Scalar_mode", "self, other, rounding_mode", divide),
    row("true_divide.Tensor true_divide.Scalar", "self, other", divide),
    row("fmod.Tensor fmod.Scalar", "self, other", widened(lambda: ops.fmod)),
    row("remainder.Tensor remainder.Scalar", "self, other", widened(ops.FloorMod)),
    row("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", "self, exponent", power),
    row("float_power.Tensor_Scalar", "self, exponent", ops.float_power),
    row("logaddexp.default", "self, other", log_of_two),
    row("addcmul.default", "self, tensor1, tensor2, value=1", ops.addcmul),
    row("addcdiv.default", "self, tensor1, tensor2, value=1", ops.addcdiv),
    row("lerp.Scalar lerp.Tensor", "self, end, weight", between),
    row("atan2.default", "self, other", direction_of),
    row("__lshift__.Tensor __lshift__.Scalar bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar",
        "self, other", shifted(ops.LeftShift)),
    row("__rshift__.Tensor __rshift__.Scalar bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar",
        "self, other", shifted(ops.RightShift)),
    *(row(f"{name}.Scalar_Tensor", "self, other", lambda self, other, operator=operator: operator()(
        ops.cast(self, other.dtype), other)) for name, operator in (
            ("bitwise_left_shift", ops.LeftShift), ("bitwise_right_shift", ops.RightShift),
            ("remainder", ops.FloorMod))),
    *(row(f"__{name}__.Tensor __{name}__.Scalar bitwise_{name}.Tensor bitwise_{name}.Scalar "
          f"bitwise_{name}.Scalar_Tensor", "self, other", bits(operator, logical)) for name, operator, logical in (
              ("and", ops.BitwiseAnd, ops.LogicalAnd), ("or", ops.BitwiseOr, ops.LogicalOr),
              ("xor", ops.BitwiseXor, ops.NotEqual))),
    row("bitwise_not.default", "self",
        lambda self: ops.LogicalNot()(self) if self.dtype == BOOL else ops.Invert()(self)),
    row("logical_not.default", "self", lambda self: ops.logical_not(ops.cast(self, BOOL))),
    *(row(f"logical_{name}.default", "self, other", lambda self, other, operator=operator: operator()(
        ops.cast(self, BOOL), ops.cast(other, BOOL))) for name, operator in (
            ("and", ops.LogicalAnd), ("or", ops.LogicalOr), ("xor", ops.NotEqual))),
    row("isin.Tensor_Tensor", "elements, test_elements, -assume_unique=False, invert=False", among),
    row("isin.Tensor_Scalar", "elements, test_element, -assume_unique=False, invert=False",
        lambda elements, one, invert: (ops.NotEqual() if invert else ops.Equal())(elements, one)),
    row("isin.Scalar_Tensor", "element, test_elements, -assume_unique=False, invert=False",
        lambda one, others, invert: among(ops.cast(one, others.dtype), others, invert)),
    row("where.self where.ScalarOther where.ScalarSelf where.Scalar", "condition, self, other", ops.where),
    row("masked_fill.Scalar masked_fill.Tensor", "self, mask, value", filled),
    row("fake_quantize_per_tensor_affine.default fake_quantize_per_tensor_affine.tensor_qparams",
        "self, scale, zero_point, quant_min, quant_max", quantized),
    row("fake_quantize_per_channel_affine.default", "self, scale, zero_point, axis, quant_min, quant_max",
        quantized_channels),
    row("clamp.default clamp.Tensor clip.default", "self, min=None, max=None", clamped),
    row("clamp_min.default clamp_min.Tensor", "self, min", clamped),
    row("clamp_max.default clamp_max.Tensor", "self, max", lambda self, max: clamped(self, None, max)),
    row("nan_to_num.default", "self, nan=None, posinf=None, neginf=None",
        lambda self, nan, posinf, neginf: self if not self.dtype.is_float else ops.nan_to_num(
            self, 0.0 if nan is None else nan, posinf, neginf)),
    row("abs.default absolute.default", "self",
        lambda self: ops.ComplexAbs()(self) if self.dtype.is_complex else ops.Abs()(self)),
    row("relu6.default", "self", lambda self: ops.ReLU6()(self) if self.dtype.is_float else ops.clamp(self, 0, 6)),
    row("square.default", "self", lambda self: self if self.dtype == BOOL else ops.Square()(self)),
    row("sign.default sgn.default", "self", sign),
    row("tanh.default", "self", of_floats(ops.Tanh)),
    row("sigmoid.default special_expit.default", "self", of_floats(ops.Sigmoid)),
    row("log_sigmoid.default", "self", functional.logsigmoid),
    row("gelu.default", "self, approximate='none'", lambda self, approximate: ops.gelu(self, approximate)),
    row("leaky_relu.default", "self, negative_slope=0.01", ops.leaky_relu),
    row("elu.default", "self, alpha=1, scale=1, input_scale=1", elu),
    row("celu.default", "self, alpha=1.0", ops.celu),
    row("softplus.default", "self, beta=1, threshold=20", ops.softplus),
    row("hardtanh.default", "self, min_val=-1, max_val=1", ops.hardtanh),
    row("prelu.default", "self, weight", leaking),
    row("glu.default", "self, dim=-1", ops.glu),
    row("threshold.default", "self, threshold, value", ops.threshold),
    row("hardshrink.default", "self, lambd=0.5", ops.hardshrink),
    row("softshrink.default", "self, lambd=0.5", ops.softshrink),
    row("hypot.default", "self, other", ops.hypot),
    row("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self", "self, other", times_log(ops.Log, 0)),
    row("isclose.default", "self, other, rtol=1e-05, atol=1e-08, equal_nan=False", ops.isclose),
    row("logit.default", "self, eps=None", log_odds),
    row("copysign.Tensor copysign.Scalar", "self, other", ops.copysign),
    row("fmax.default", "self, other", lambda self, other: further(ops.fmax, ops.GreaterEqual, self, other)),
    row("fmin.default", "self, other", lambda self, other: further(ops.fmin, ops.LessEqual, self, other)),
    row("heaviside.default", "self, values", ops.heaviside),
    row("ldexp.Tensor", "self, other", lambda self, other: ops.ldexp(self, other) if not is_complex(other)
        else self * raised(ops.Pow())(2.0, other)),
    *(row(name, arguments, lambda self, decimals: ops.round(self, decimals=decimals)) for name, arguments in (
        ("round.decimals", "self, decimals"), ("special_round.default", "self, decimals=0"))),
    row("polygamma.default", "n, self", derivative_of_digamma),
    row("i0.default special_i0.default", "self", ops.bessel_i0),
    row("special_i0e.default", "self", ops.bessel_i0e),
    row("special_i1.default", "self", ops.bessel_i1),
    row("special_i1e.default", "self", ops.bessel_i1e),
    row("mvlgamma.default", "self, p", lambda self, p: ops.addn([ops.Lgamma()(self - j / 2) for j in range(p)])
        + p * (p - 1) / 4 * math.log(math.pi)),
    row("special_entr.default", "self", entropy),
    row("special_ndtr.default", "self", lambda self: ops.Erfc()(self * -(0.5**0.5)) * 0.5),
    row("special_ndtri.default", "self", lambda self: ops.Erfinv()(self * 2 - 1) * 2**0.5),
    row("special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar", "self, other",
        times_log(ops.Log1p, -1)),
    row("threshold_backward.default", "grad_output, self, threshold", lambda dout, self, threshold: ops.where(
        ops.Greater()(self, threshold), dout, ops.zeros_like(dout))),
)  # fmt: skip
"""Kinds of numbers, one element at a time."""


def of_pairs(self: Any) -> Any:
    """Complex numbers of real and imaginary parts, the last dimension."""
    real, imaginary = ops.unstack(self, -1)
    return ops.Complex()(real, imaginary)


def direction(self: Any) -> Any:
    """Return the angle in the plane; of a negative real number that is pi, of NaN NaN."""
    if self.dtype.is_complex:
        return direction_of(ops.Imag()(self), ops.Real()(self))
    self = self if self.dtype.is_float else ops.cast(self, FLOAT32)
    angle = ops.where(ops.Less()(self, 0), ops.full_like(self, 3.141592653589793), ops.zeros_like(self))
    return ops.where(ops.IsNan()(self), self, angle)


def transformed_parts(
    self: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any, center: Any, pad_mode: Any, normalized: Any,
    onesided: Any, return_complex: Any,
) -> Any:  # fmt: skip
    """Return the Fourier transforms of overlapping parts of signals, complex ones by their real and imaginary parts."""
    operands = (self,) if window is None else (self, window)
    if not is_complex(operands):
        return ops.stft(self, n_fft, hop_length, win_length, window, center, pad_mode.upper(), normalized, onesided,
                        return_complex)  # fmt: skip
    found = of_parts(lambda x, shape=None: ops.stft(
        x, n_fft, hop_length, win_length, shape, center, pad_mode.upper(), normalized, False, True), operands)
    return found if return_complex is None or return_complex else ops.view_as_real(found)


def joined_parts(
    self: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any, center: Any, normalized: Any, onesided: Any,
    length: Any, return_complex: Any,
) -> Any:  # fmt: skip
    """Return the signals with parts that have such Fourier transforms: parts are added, and divided by the sum of the
    window's squares."""
    spectra = self if return_complex or onesided in (None, True) else self[..., : n_fft // 2 + 1, :]
    parts = (ops.ifft if return_complex else ops.irfft)(ops.swapaxes(spectra, -1, -2), n_fft)
    parts = ops.swapaxes(parts, -1, -2)
    hop, count, size = hop_length or n_fft // 4, parts.shape[-1], win_length or n_fft
    before = (n_fft - size) // 2
    shape = ops.ones((size,), real_of(parts.dtype)) if window is None else window
    shape = by_parts(ops.pad, None)(shape, (before, n_fft - size - before))
    total = n_fft + hop * (count - 1)
    places = ops.Reshape()(ops.Reshape()(ops.arange(n_fft), (-1, 1)) + hop * ops.arange(count), (-1,))

    def over(each: Any) -> Any:
        rows = ops.Reshape()(each, (*each.shape[:-2], n_fft * count))
        return by_parts(mint.index_add, None)(ops.zeros((*rows.shape[:-1], total), rows.dtype), -1, places, rows)

    column = ops.Reshape()(shape, (n_fft, 1))
    begin = n_fft // 2 if center else 0
    end = total - begin if length is None else min(total, begin + length)
    weights = over(ops.BroadcastTo((n_fft, count))(column * column))[begin:end]
    found = over(parts * column)[..., begin:end] / weights
    found = found * n_fft**0.5 if normalized else found
    return found if length is None else by_parts(ops.pad, None)(found, (0, length - (end - begin)))


def scaling(normalization: Any, is_forward: Any) -> Any:
    """Return the name of a scaling of transforms: 0 for none, 1 for the root of the size, 2 for the size."""
    return ("backward" if is_forward else "forward", "ortho", "forward" if is_forward else "backward")[normalization]


def transform_to_real(self: Any, dim: Any, normalization: Any, last_dim_size: Any) -> Any:
    """Return the inverse transform of one half of the transform of real numbers."""
    sizes = tuple([self.shape[d] for d in dim[:-1]])
    return ops.irfftn(self, (*sizes, last_dim_size), tuple(dim), scaling(normalization, False))


COMPLEX = (
    row("_fft_r2c.default", "self, dim, normalization, onesided",
        lambda self, dim, normalization, onesided: (ops.rfftn if onesided else ops.fftn)(
            self, None, tuple(dim), scaling(normalization, True))),
    row("_fft_c2c.default", "self, dim, normalization, forward",
        lambda self, dim, normalization, forward: (ops.fftn if forward else ops.ifftn)(
            self, None, tuple(dim), scaling(normalization, forward))),
    row("_fft_c2r.default", "self, dim, normalization, last_dim_size", transform_to_real),
    row("view_as_real.default", "self", ops.view_as_real),
    row("view_as_complex.default", "self", of_pairs),
    row("complex.default", "real, imag", lambda real, imag: ops.Complex()(real, imag)),
    row("polar.default", "abs, angle", ops.polar),
    row("real.default", "self", lambda self: ops.Real()(self) if self.dtype.is_complex else self),
    row("angle.default", "self", direction),
    row("imag.default", "self", lambda self: ops.Imag()(self)),
    row("conj.default _conj.default", "self", lambda self: ops.Conj()(self) if self.dtype.is_complex else self),
    row("stft.default", "self, n_fft, hop_length=None, win_length=None, window=None, normalized=False, onesided=None, "
        "return_complex=None, -align_to_window=None",
        lambda self, n_fft, hop, length, window, *rest: transformed_parts(
            self, n_fft, hop, length, window, False, "reflect", *rest)),
    row("stft.center", "self, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode='reflect', "
        "normalized=False, onesided=None, return_complex=None, -align_to_window=None", transformed_parts),
    row("istft.default", "self, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, "
        "onesided=None, length=None, return_complex=False", joined_parts),
    row("fft_fftshift.default", "self, dim=None", ops.fftshift),
    row("fft_ifftshift.default", "self, dim=None", ops.ifftshift),
    *(row(f"fft_{name}.default", "self, n=None, dim=-1, norm=None", getattr(ops, name))
      for name in ("fft", "ifft", "rfft", "irfft")),
    *(row(f"fft_{name}.default", "self, s=None, dim=(-2, -1), norm=None", getattr(ops, name))
      for name in ("fft2", "ifft2", "rfft2", "irfft2")),
    *(row(f"fft_{name}.default", "self, s=None, dim=None, norm=None", getattr(ops, name))
      for name in ("fftn", "ifftn", "rfftn", "irfftn")),
)  # fmt: skip
"""Kinds of complex numbers."""

"""Calls of the kinds of ATen that are read, for tests that compare them with PyTorch."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import FLOAT64, INT64
from tests.drawn import Drawn, bools, exactly, floats, integers


class Call(NamedTuple):
    """One call of a kind: its arguments by place and by name."""

    kind: str
    args: tuple[Any, ...]
    named: dict[str, Any]


X, Y, ROW = floats(3, 4), floats(3, 4), floats(4)
POSITIVE, WHOLE, MORE = floats(3, 4, low=0.5, high=2.0), integers(3, 4, low=-5, high=6), integers(3, 4, low=1, high=5)
IMAGE, TRUTH = floats(2, 4, 6, 6), bools(3, 4)
FIXED = Drawn("positive", (3, 3))
SMALL = Drawn("float64", (2, 4), -1e-4, 1e-4)
COMPLEX, COMPLEX_ROW = Drawn("complex64", (2, 4)), Drawn("complex64", (4,))


def calls() -> Iterator[Call]:
    """At least one of every kind whose numbers PyTorch has, too."""
    yield from _calls(*_CALLS, *_MORE, *_SPECIAL, *_GRADIENTS, *_LISTS)


def writing_calls() -> Iterator[Call]:
    """Calls of kinds that overwrite arguments."""
    yield from _calls(*_WRITTEN)


def _calls(*rows: tuple[Any, ...]) -> Iterator[Call]:
    for kinds, *args in rows:
        named = args.pop() if args and isinstance(args[-1], dict) else {}
        for kind in kinds.split():
            yield Call(kind if kind.count(".") > 1 else f"aten.{kind}", tuple(args), named)


_ATTENTION = (floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8))
_NORM = (IMAGE, floats(4), floats(4), floats(4), floats(4, low=0.5))

_POLYNOMIALS = [f"special_{name}" for name in (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")]  # fmt: skip

_CALLS: tuple[tuple[Any, ...], ...] = (
    *((f"{name}.n_scalar", X, 3) for name in _POLYNOMIALS), *((f"{name}.x_scalar", 0.4, MORE) for name in _POLYNOMIALS),
    ("special_zeta.other_scalar", floats(3, 4, low=1.5, high=3), 2.0), ("special_zeta.self_scalar", 2.5, POSITIVE),
    ("atleast_1d.Sequence atleast_2d.Sequence atleast_3d.Sequence", (X, ROW)),
    ("hsplit.array vsplit.array", floats(4, 4), (1, 3)), ("trapz.dx trapezoid.dx", X, {"dx": 0.5}),
    ("scatter.reduce", X, 0, integers(2, 4, high=3), Y, {"reduce": "add"}),
    ("gradient.tensorarrayint", X, {"spacing": (exactly([0, 1, 3, 4]),), "dim": 1}),
    ("gradient.scalarrayarray", X, {"spacing": (0.5, 2.0), "dim": (0, 1)}), ("slice.Tensor", X),
    ("index.Tensor", floats(4, 5, 4), (integers(3), None, integers(3))),
    ("__xor__.Scalar", WHOLE, 3), ("isin.Scalar_Tensor", 2, WHOLE), ("split.default", X, (1, 2)),
    ("narrow.Tensor", X, 1, integers(low=1, high=2), 2), ("narrow.Tensor", X, -1, integers(low=-3, high=-2), 2),
    ("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor remainder.Scalar_Tensor "
     "bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor", 23, MORE),
    ("special_xlog1py.other_scalar", POSITIVE, 2.5), ("special_xlog1py.self_scalar", 2.5, POSITIVE),
    ("float_power.Scalar", 2.0, POSITIVE), ("special_round.default", X), ("special_round.default", X, {"decimals": 1}),
    ("stft.center", floats(2, 40), 8, {"return_complex": True}), ("linalg_matrix_rank.default", X, 0.1),
    ("linalg_pinv.rcond_tensor", X, exactly(1e-3)), ("linalg_matrix_rank.tol_tensor", X, exactly(0.1)),
    ("linalg_cond.p_str", FIXED, "fro"), ("resize.default", X, (2, 3)), ("resize_as.default", X, floats(2, 3)),
    ("norm.ScalarOpt_dim_dtype", X, 2, (1,), True, {"dtype": FLOAT64}),
    ("norm.ScalarOpt_dtype", X, 2, {"dtype": FLOAT64}),
    ("_batch_norm_with_update_functional.default", *_NORM, 0.1, 1e-5),
    ("_batch_norm_no_update.default", *_NORM, 0.1, 1e-5), ("nonzero_numpy.default where.default", WHOLE),
    ("_unique.default", WHOLE, {"return_inverse": True}),
    ("unique_dim_consecutive.default", WHOLE, 0, {"return_counts": True}),
    ("unique_dim.default", exactly([[1, 0], [0, 2], [1, 0]]), 0, {"return_inverse": True, "return_counts": True}),
    ("scatter.value_reduce", X, 0, integers(2, 4, high=3), 2.0, {"reduce": "multiply"}),
    ("orgqr.default", floats(4, 2), floats(2, low=0.2)), ("det.default slogdet.default", FIXED),
    ("isin.Tensor_Scalar", WHOLE, 2, {"invert": True}), ("xlogy.Scalar_Other", POSITIVE, 2.5),
    ("xlogy.Scalar_Self", 2.5, POSITIVE), ("count_nonzero.dim_IntList", WHOLE, (0,)),
    ("gradient.array", X, {"dim": (0, 1)}), ("gradient.scalararray", X, {"spacing": 0.5, "dim": (1,)}),
    ("gradient.scalarrayint", X, {"spacing": (0.5,), "dim": 1}),
    ("gradient.tensorarray", X, {"spacing": (exactly([0, 1, 3, 4]),), "dim": (1,)}),
    ("cumulative_trapezoid.dx", X, {"dx": 0.5}), ("linalg_pinv.atol_rtol_float", X, {"rtol": 1e-3}),
    ("linalg_pinv.default", X, 1e-3), ("histogram.bins_tensor", X, exactly([-1, 0, 0.5, 1])),
    ("multiply.Tensor maximum.default minimum.default", X, ROW), ("true_divide.Scalar fmod.Scalar", X, 0.3),
    ("floor_divide.default", WHOLE, MORE), ("floor_divide.Scalar", WHOLE, 3),
    ("div.Scalar_mode", WHOLE, 2, {"rounding_mode": "floor"}), ("float_power.Tensor_Scalar", POSITIVE, 2),
    ("lerp.Tensor", X, Y, POSITIVE), ("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", WHOLE, MORE),
    ("__and__.Tensor bitwise_and.Tensor __or__.Tensor bitwise_or.Tensor __xor__.Tensor", TRUTH, bools(4)),
    ("__and__.Tensor", WHOLE, MORE),
    ("bitwise_and.Scalar __and__.Scalar bitwise_or.Scalar __or__.Scalar bitwise_xor.Scalar", WHOLE, 5),
    ("where.ScalarOther", TRUTH, X, 0.5), ("where.ScalarSelf", TRUTH, 0.5, X), ("where.Scalar", TRUTH, 1.5, 0.5),
    ("masked_fill.Scalar", X, TRUTH, -2.0), ("masked_fill.Tensor", X, TRUTH, floats()),
    ("clamp.default clip.default", X, -0.5, 0.5), ("clamp.default", X, {"max": 0.5}), ("clamp_max.default", X, 0.1),
    ("neg.default negative.default abs.default absolute.default", X), ("special_expit.default", X),
    ("view.default reshape.default", X, (2, -1)), ("_reshape_alias.default", X, (2, 6), (6, 1)),
    ("transpose.int swapdims.default swapaxes.default", floats(2, 3, 4), 0, -1), ("adjoint.default", X),
    ("permute.default", floats(2, 3, 4), (2, 0, -2)), ("movedim.int moveaxis.int", floats(2, 3, 4), 0, -1),
    ("moveaxis.intlist", floats(2, 3, 4), (0, 1), (2, 0)), ("unsqueeze.default", X, -1),
    ("squeeze.dim", floats(1, 3, 1), 0), ("tensor_split.sections", floats(7, 2), 3),
    ("reflection_pad2d.default", IMAGE, (1, 2, 0, 3)),
    ("reflection_pad3d.default replication_pad3d.default", floats(2, 3, 4, 4, 4), (1, 2, 0, 3, 1, 1)),
    ("split.sizes unsafe_split_with_sizes.default", floats(7, 2), (3, 4)), ("concat.default", (X, Y), 1),
    ("repeat.default", X, (2, 1, 3)), ("tril.default triu.default", X, 1), ("native_channel_shuffle.default", IMAGE, 2),
    ("meshgrid.default", (floats(2), floats(3))), ("arange.default", 5), ("arange.start", 2, 7),
    ("scalar_tensor.default", 0.5), ("eye.m", 2, 3), ("copy.default", X, ROW), ("copy.default", WHOLE, X),
    ("fill.Tensor", X, floats()), ("zero.default", X), ("prod.dim_int", X, 1),
    ("var.dim std.dim var_mean.dim", X, (1,), True), ("all.dim", TRUTH, 1), ("all.dims any.dims", TRUTH, (0, 1)),
    ("norm.Scalar", X), ("median.dim", floats(3, 5), 1), ("cumsum.default", X, 1), ("diff.default", X),
    ("sort.stable argsort.stable", X, {"stable": True}),
    ("_native_batch_norm_legit_functional.default", *_NORM, True, 0.1, 1e-5),
    ("_native_batch_norm_legit_no_training.default", *_NORM, 0.1, 1e-5),
    ("_native_batch_norm_legit.no_stats", IMAGE, floats(4), floats(4), True, 0.1, 1e-5),
    ("_weight_norm.default", X, floats(3, 1)), ("_weight_norm.default", X, floats(), -1),
    ("fake_quantize_per_tensor_affine.default", X, 0.1, 1, -4, 7),
    ("fake_quantize_per_tensor_affine.tensor_qparams", X, exactly([0.1]), exactly([1], "int32"), -4, 7),
    ("fake_quantize_per_channel_affine.default", X, exactly([0.1, 0.2, 0.07]), exactly([1, 0, -2], "int32"), 0, -4, 7),
    ("index.Tensor", floats(5, 4), (integers(2, 3),)),
    ("_unsafe_index_put.default", floats(5, 4), (integers(3),), floats(3, 4), {"accumulate": True}),
    ("one_hot.default", integers(3), 5), ("conv1d.padding", floats(2, 4, 8), floats(6, 4, 3), None, (1,), "same"),
    ("conv2d.padding", IMAGE, floats(6, 4, 3, 3), None, (1, 1), "same"),
    ("conv3d.default", floats(2, 2, 4, 4, 4), floats(3, 2, 2, 2, 2)),
    ("max_pool2d.default", IMAGE, (3, 3), (2, 2), (1, 1)), ("max_pool2d.default", IMAGE, (2, 2)),
    ("max_pool1d.default", floats(2, 4, 8), (2,)), ("max_pool3d.default", floats(2, 2, 4, 4, 4), (2, 2, 2)),
    ("upsample_nearest2d.vec", IMAGE, None, (2.0, 2.0)), ("upsample_nearest2d.default", IMAGE, (9, 12)),
    ("upsample_nearest2d.vec _upsample_nearest_exact2d.vec", IMAGE, None, (1.7, 0.6)),
    ("upsample_nearest2d.default", IMAGE, (9, 82), 1.5, 13.8),
    ("_upsample_bicubic2d_aa.vec", IMAGE, (4, 5), False, None),
    ("_upsample_bicubic2d_aa.vec", IMAGE, (9, 12), False, None),
    ("upsample_nearest3d.vec _upsample_nearest_exact3d.vec", floats(2, 2, 3, 3, 3), None, (2.0, 2.0, 1.5)),
    ("nll_loss.default", floats(6, 4), integers(6)), ("nll_loss2d.default", floats(2, 4, 3, 3), integers(2, 3, 3)),
    ("nll_loss2d_forward.default", floats(2, 4, 3, 3), integers(2, 3, 3), None, 1, -100),
    ("inverse.default", floats(2, 3, 3)), ("linalg_matrix_norm.default", X, 1),
    ("affine_grid_generator.default", floats(2, 2, 3), (2, 1, 3, 4), False),
    ("affine_grid_generator.default", floats(2, 2, 3), (2, 1, 3, 4), True),
    ("lstm.input", floats(5, 2, 3), (floats(2, 2, 4), floats(2, 2, 4)), (floats(16, 3), floats(16, 4), floats(16),
     floats(16), floats(16, 4), floats(16, 4), floats(16), floats(16)), True, 2, 0.0, True, False, False),
    ("lstm.input", floats(5, 2, 3), (floats(1, 2, 2), floats(1, 2, 4)), (floats(16, 3), floats(16, 2), floats(16),
     floats(16), floats(2, 4)), True, 1, 0.0, True, False, False),
    ("lstm.input", floats(2, 5, 3), (floats(2, 2, 2), floats(2, 2, 4)), (floats(16, 3), floats(16, 2), floats(2,
     4)) * 2, False, 1, 0.0, True, True, True),
    ("gru.input", floats(2, 5, 3), floats(2, 2, 4), (floats(12, 3), floats(12, 4), floats(12, 3), floats(12, 4)),
     False, 1, 0.0, False, True, True),
    ("rnn_tanh.input rnn_relu.input", floats(5, 2, 3), floats(1, 2, 4), (floats(4, 3), floats(4, 4), floats(4),
     floats(4)), True, 1, 0.0, False, False, False),
    ("lstm_cell.default", floats(2, 3), (floats(2, 4), floats(2, 4)), floats(16, 3), floats(16, 4), floats(16),
     floats(16)),
    ("gru_cell.default", floats(2, 3), floats(2, 4), floats(12, 3), floats(12, 4)),
    ("rnn_tanh_cell.default rnn_relu_cell.default", floats(2, 3), floats(2, 4), floats(4, 3), floats(4, 4)),
    ("view_as_real.default real.default imag.default conj.default _conj.default", COMPLEX),
    ("isclose.default logaddexp.default ldexp.Tensor", COMPLEX, COMPLEX), ("sinc.default std_mean.default", COMPLEX),
    ("logsumexp.default", COMPLEX, (1,)), ("linalg_matrix_norm.str_ord", COMPLEX, "nuc", (-1, 0), True),
    ("linalg_norm.default", COMPLEX, 1), ("renorm.default", COMPLEX, 2, 1, 0.5), ("rms_norm.default", COMPLEX, (4,)),
    ("_unsafe_masked_index.default", COMPLEX_ROW, bools(3), (integers(3),), 2),
    ("alias.default lift.default contiguous.default detach.default clone.default lift_fresh_copy.default", X),
    ("lift_fresh.default", X), ("to.dtype _to_copy.default to.dtype_layout", X, {"dtype": INT64}),
    ("to.other type_as.default", X, WHOLE), ("native_dropout.default", X, 0.5, False),
)  # fmt: skip

SIGNS, WHOLE_FLOATS = Drawn("signs", (6,)), Drawn("whole", (3, 4))
SQUARES = floats(2, 3, 3)

_MORE: tuple[tuple[Any, ...], ...] = (
    ("copysign.Scalar", X, -1.0), ("special_i0.default", X), ("angle.default abs.default sum.default", COMPLEX),
    ("sum.dim_IntList", COMPLEX, (1,), True), ("round.decimals", floats(3, 4, low=-300, high=300), {"decimals": -1}),
    ("matrix_power.default", SQUARES, 3), ("tensor_split.indices", X, (1, 3), 1), ("dsplit.int", floats(2, 3, 4), 2),
    ("std_mean.dim", X, (1,)), ("embedding_bag.default", floats(4, 3), integers(7), Drawn("bags", (3,))),
    ("hann_window.default hamming_window.default blackman_window.default bartlett_window.default", 6),
    ("hann_window.periodic hamming_window.periodic blackman_window.periodic bartlett_window.periodic", 7, False),
    ("hardtanh.default", floats(3, low=1, high=1)), ("logcumsumexp.default", floats(3, 5, low=-300, high=300), 1),
    ("linalg_norm.ord_str", X, "fro"), ("linalg_norm.ord_str", floats(2, 3, 4), "nuc", (0, 2), True),
    ("special_xlog1py.default", floats(3, 4, low=1e4, high=1e5), floats(3, 4, high=1e-7, low=1e-8)),
    ("__lshift__.Tensor __rshift__.Tensor", WHOLE, MORE),
    ("stft.default", Drawn("complex64", (2, 20)), 8, 4, {"window": floats(8)}),
    ("__lshift__.Scalar bitwise_left_shift.Tensor_Scalar __rshift__.Scalar bitwise_right_shift.Tensor_Scalar", WHOLE,
     2),
    ("repeat_interleave.self_Tensor", X, integers(1, low=2, high=3), 1, {"output_size": 8}),
    ("repeat_interleave.Tensor", Drawn("counts", (6,)), {"output_size": 9}),
    ("repeat_interleave.self_Tensor", floats(6, 2), Drawn("counts", (6,)), 0, {"output_size": 9}),
    ("istft.default", Drawn("complex64", (2, 9, 5)), 16, 4, 12, floats(12, low=0.5), True, True, None, 20),
    ("std.dim std_mean.dim var_mean.dim", floats(3, 4, low=1, high=1), (1,)), ("std.default", floats(3, low=1, high=1)),
    ("std.correction std_mean.correction", floats(3, 4, low=1, high=1), (0,), {"correction": 1}),
    ("atan2.default", floats(3, low=0, high=0), floats(3, low=0, high=0)), ("median.default", floats(4, low=1, high=1)),
    ("xlogy.Tensor", floats(3, low=0, high=0), floats(3, low=2, high=3)),
)  # fmt: skip

NAN, INF = float("nan"), float("inf")
NANS = exactly([[NAN] * 4] * 3)
HIDDEN = exactly([[0, 0, -INF, -INF, 0, 0], [-INF] * 6, [0] * 6, [0, -INF] * 3, [-INF] * 6])
HIDDEN_BOOL = exactly(
    [[True, True, False, False, True, True], [False] * 6, [True] * 6, [True, False] * 3, [False] * 6], "bool"
)
NEVER = 1e-12
"""A probability with which nothing is dropped, and which is above 0."""
ONE_HEAD = (_ATTENTION[0], floats(2, 1, 6, 8), floats(2, 1, 6, 3))
COUNTED = floats(1, 1, 4, 4, low=1, high=9)

TIES, LIMITS = exactly([1, 2, 3, NAN, 5, INF, -INF]), exactly([1, 3, 2, 0, NAN, 1, 1])
EQUAL, ORDERED = exactly([1, 2, 3, 3]), exactly([1, 3, 2, 3])
OTHERS = exactly([4] * 7), exactly([3] * 4)

_SPECIAL: tuple[tuple[Any, ...], ...] = (
    ("_safe_softmax.default", HIDDEN, -1), ("_safe_softmax.default", HIDDEN, 0),
    *(("scaled_dot_product_attention.default", *operands, mask, dropout, {"enable_gqa": operands is ONE_HEAD})
      for operands in (_ATTENTION, (*_ATTENTION[:2], floats(2, 4, 6, 3)), ONE_HEAD)
      for mask in (HIDDEN, HIDDEN_BOOL) for dropout in (0.0, NEVER)),
    ("pad.default", COUNTED, (-1, 1, -2, 1), "circular"), ("pad.default", COUNTED, (-1, 1, 0, 0), "circular"),
    ("var.correction std.correction var_mean.correction std_mean.correction", X, {"correction": 0.5}),
    ("addr.default", NANS, floats(3), floats(4), {"beta": 0}),
    ("addmm.default", NANS, floats(3, 2), floats(2, 4), {"beta": 0}),
    ("addbmm.default", NANS, floats(2, 3, 2), floats(2, 2, 4), {"beta": 0}),
    ("clamp.Tensor", TIES, LIMITS, OTHERS[0]), ("clamp_min.Tensor clamp_max.Tensor", TIES, LIMITS),
    ("fmax.default fmin.default", TIES, LIMITS), ("fmax.default fmin.default", LIMITS, TIES),
    ("clamp.Tensor", EQUAL, exactly([1, 3, 2, 0]), OTHERS[1]), ("clamp_min.Tensor clamp_max.Tensor", EQUAL, ORDERED),
    ("fmax.default fmin.default", EQUAL, ORDERED),
    ("lerp.Tensor", OTHERS[0], exactly([INF, 1, 2, 3, -INF, 0, NAN]), exactly([1, 0, 0.75, 0.5, 1, 0.25, -0.5])),
    ("lerp.Scalar", exactly([1e8, -INF]), exactly([1, 3]), 1.0),
    ("logit.default", exactly([0, 1, 0.25, NAN])), ("angle.default", exactly([NAN, INF, -INF, -0.0, 2])),
    ("quantile.scalar", exactly([[NAN, 1, 2], [3, 1, 2]]), 0.5, 1),
    ("trace.default", exactly([[1, NAN], [INF, 2]])),
    ("scatter_reduce.two", exactly([[0, 1, 1]]), 1, exactly([[0, 0, 1]], "int64"), exactly([[2, 2, 1]]), "amax"),
    ("scatter_reduce.two", exactly([[5, 0]]), 1, exactly([[0, 0, 1]], "int64"), exactly([[2, 5, 1]]), "amin"),
    ("margin_ranking_loss.default", EQUAL, ORDERED, exactly([1, -1, 1, -1])),
)  # fmt: skip
"""Calls with infinite numbers and NaN, equal elements, and other arguments that are easily forgotten."""

IMAGE_AFTER, VOLUME = floats(2, 4, 3, 3), floats(2, 2, 4, 4, 4)
_ALL, ENDS = [True] * 3, exactly([2, 2, 8], "int32")
_LABELS = (floats(6, 4), integers(6))
_PLACES = integers(2, 4, 3, 3, high=36)
_ATTENDED = (floats(2, 4, 5, 8), *_ATTENTION, floats(2, 4, 5, 8), floats(2, 4, 5, low=1, high=3))

_GRADIENTS: tuple[tuple[Any, ...], ...] = (
    ("log_sigmoid_backward.default", floats(3), exactly([0, 1, -2]), exactly(np.exp([0, -1, -2]))),
    ("native_layer_norm_backward.default", X, Y, [4], floats(3, 1), floats(3, 1), floats(4), floats(4), _ALL),
    ("rms_norm.default _fused_rms_norm.default", SMALL, (4,), None, None),
    ("_fused_rms_norm.default", X, (4,), ROW, None), ("_fused_rms_norm.default", floats(2, 3, 4), (3, 4), None, 1e-3),
    ("_weight_norm_interface.default", X, floats(3, 1)),
    ("_weight_norm_interface_backward.default", floats(2, 2), exactly([[3, 4], [8, 6]]), floats(2, 1), exactly([[5],
     [10]]), 0),
    ("nll_loss2d_backward.default", floats(), floats(2, 4, 3, 3), integers(2, 3, 3), floats(4), 1, 2, floats(low=1)),
    ("multi_margin_loss_backward.default", floats(), *_LABELS, 1, 0.5, floats(4, low=0.5), 1),
    ("multilabel_margin_loss_forward.default", floats(3, 4), integers(3, 4, low=-1, high=4), 1),
    ("multilabel_margin_loss_backward.default", floats(), floats(1, 4), exactly([[2, 0, -1, 1]], "int64"), 1,
     exactly([[1, 0, 1, 0]])),
    ("reflection_pad2d_backward.default", floats(2, 4, 9, 9), IMAGE, (1, 2, 0, 3)),
    ("reflection_pad3d_backward.default replication_pad3d_backward.default", floats(2, 2, 6, 7, 7), VOLUME, (1, 2, 0, 3,
     1, 1)),
    ("_grouped_mm.default", floats(8, 4), floats(3, 4, 4), ENDS),
    ("_grouped_mm.default", floats(4, 8), floats(8, 4), ENDS),
    ("upsample_nearest2d_backward.default _upsample_nearest_exact2d_backward.default", floats(2, 4, 9, 12), (9, 12), (2,
     4, 6, 6)),
    ("upsample_nearest3d_backward.default _upsample_nearest_exact3d_backward.default", floats(2, 2, 8, 6, 6), (8, 6, 6),
     (2, 2, 4, 4, 4)),
    *(("mkldnn_rnn_layer.default", floats(5, 2, 3), floats(16, 3), floats(16, 4), floats(16), floats(16), floats(2, 4),
     floats(2, 4), reverse, (), 2, 4, 1, True, True, False, True) for reverse in (False, True)),
    *(("_fft_c2c.default", Drawn("complex64", (3, 4)), (1,), scaling, False) for scaling in (0, 2)),
    ("_conj_physical.default conj_physical.default", COMPLEX), ("split_copy.Tensor", floats(7, 2), 3),
    ("arcsin.default special_erf.default special_sinc.default", X), ("concatenate.default", (X, Y), 1),
    ("greater.Tensor not_equal.Tensor less_equal.Tensor", WHOLE, MORE), ("divide.Scalar multiply.Scalar", X, 0.3),
    ("upsample_nearest3d.default _upsample_nearest_exact3d.default", VOLUME, (5, 6, 4)),
    ("_upsample_nearest_exact2d.default", IMAGE, (9, 12)), ("_upsample_bicubic2d_aa.default", IMAGE, (9, 4), False),
    ("_upsample_bicubic2d_aa_backward.default", floats(2, 4, 9, 4), (9, 4), (2, 4, 6, 6), False),
    *(("_embedding_bag.default", floats(4, 3), integers(7), Drawn("bags", (3,)), False, mode, False, None, False,
     2) for mode in (0, 1)),
    *(("index_reduce.default", floats(5, 4), 0, exactly([1, 3, 1], "int64"), floats(3, 4),
     reduce) for reduce in ("mean", "prod", "amax", "amin")),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, 0.0, True, {"scale": 0.3}),
    ("_scaled_dot_product_flash_attention_for_cpu.default", *_ATTENTION, {"attn_mask": floats(1, 1, 5, 6)}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, True, {"scale": 0.3}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward.default", *_ATTENDED, 0.0, False, {"attn_mask": floats(1, 1,
     5, 6)}),
)  # fmt: skip
"""Calls of the kinds that autograd calls."""

PAIR, OTHER_PAIR, LARGE = (X, ROW), (Y, floats(4)), (POSITIVE, floats(4, low=0.5, high=2.0))
_ONE = """abs neg sqrt rsqrt reciprocal exp log sign tanh sigmoid""".split()
_TWO = """mul div maximum minimum clamp_min clamp_max pow add sub""".split()
_LISTED: tuple[tuple[Any, ...], ...] = (
    *((f"{name}{{}}.default", LARGE) for name in _ONE), *((f"{name}{{}}.List", LARGE, OTHER_PAIR) for name in _TWO),
    *((f"{name}{{}}.Scalar", LARGE, 0.7) for name in _TWO),
    *((f"{name}{{}}.ScalarList", LARGE, [0.7, 2.0]) for name in _TWO),
    *((f"{name}{{}}.Tensor", PAIR, floats()) for name in ("mul", "div", "add")),
    *((f"{name}{{}}.Scalar", PAIR, OTHER_PAIR, LARGE, 0.5) for name in ("addcmul", "addcdiv")),
    *((f"{name}{{}}.ScalarList", PAIR, OTHER_PAIR, LARGE, [0.5, 2.0]) for name in ("addcmul", "addcdiv")),
    ("lerp{}.Scalar", PAIR, OTHER_PAIR, 0.3), ("lerp{}.List", PAIR, OTHER_PAIR, LARGE),
    ("add{}.List", PAIR, OTHER_PAIR, {"alpha": 0.3}), ("copy{}.default", PAIR, OTHER_PAIR),
)  # fmt: skip
_LISTS: tuple[tuple[Any, ...], ...] = (
    *((f"_foreach_{name.format('')}", *args) for name, *args in _LISTED),
    ("_foreach_norm.Scalar", PAIR), ("_foreach_norm.Scalar", PAIR, 1), ("_foreach_pow.ScalarAndTensor", 0.9, PAIR),
)  # fmt: skip
_ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.3, "eps": 1e-6, "amsgrad": False, "maximize": False}
_SGD = {"weight_decay": 0.3, "momentum": 0.9, "lr": 0.1, "dampening": 0.2, "nesterov": False, "maximize": False,
        "is_first_step": False}  # fmt: skip
_STATES = (PAIR, OTHER_PAIR, PAIR, LARGE)
_STEPS = (exactly(3.0), exactly(3.0))

_WRITTEN: tuple[tuple[Any, ...], ...] = (
    ("embedding_renorm_.default", X, integers(2, high=3), 0.5, 2.0),
    *((f"_foreach_{name.format('_')}", *args) for name, *args in _LISTED), ("_foreach_zero_.default", PAIR),
    ("_fused_adam_.default _fused_adamw_.default", *_STATES, (), _STEPS, _ADAM),
    ("_fused_adamw_.default", *_STATES, LARGE, _STEPS, _ADAM | {"amsgrad": True, "maximize": True}),
    ("_fused_adam_.tensor_lr _fused_adamw_.tensor_lr", *_STATES, (), _STEPS, _ADAM | {"lr": exactly(0.1)}),
    ("_fused_sgd_.default", *_STATES[:3], _SGD), ("_fused_sgd_.default", *_STATES[:2], (), _SGD | {"momentum": 0.0}),
    ("_fused_sgd_.tensor_lr", *_STATES[:3], _SGD | {"lr": exactly(0.1), "nesterov": True, "dampening": 0.0}),
)  # fmt: skip
"""Calls of kinds that overwrite arguments."""

"""`ops.f(x)`, `x.f()` in a compiled function and `x.f()` on a Tensor outside of one are one definition: every function
and every method is called each way, with equal results.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from interpret import run_global

import mspc as ms
import mspc.numpy as mnp
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.ops.method_table import find_method, method_names

GENERATOR = np.random.default_rng(3)
X = Tensor(GENERATOR.random((2, 4), np.float32) + 0.1)
Y = Tensor(GENERATOR.random((2, 4), np.float32) + 0.1)
W = Tensor(GENERATOR.random((4, 3), np.float32))
THREE = Tensor(GENERATOR.random((2, 3, 4), np.float32))
ONE = Tensor(GENERATOR.random((2, 1, 4), np.float32))
MASK = Tensor(np.array([[True, False, True, False], [False, False, True, True]]))
WHOLE = Tensor(np.array([[3, -1, 0, 2], [5, 1, -4, 7]], np.int32))
PLACES = Tensor(np.array([1, 0, 1], np.int32))
CLASSES = Tensor(np.array([1, 3], np.int32))
SIGNS = Tensor(np.array([[1, -1, 1, -1], [-1, -1, 1, 1]], np.int32))

IMAGE = Tensor(GENERATOR.random((1, 2, 4, 4), np.float32))
ZEROS = Tensor(np.zeros(2, np.float32))
SQUARE = Tensor(np.array([[2.0, 0.5], [-0.3, 1.5]], np.float32))
SYMMETRIC = Tensor(np.array([[2.0, 0.5], [0.5, 1.5]], np.float32))
COMPLEX = Tensor(np.array([[1 + 2j, 3 - 1j]], np.complex64))
SPREAD = Tensor(np.array([[0, 3, 5, 6], [1, 2, 4, 7]]))

LABELS = Tensor(np.array([[1, 0, -1, 2], [3, 2, 1, 0]], np.int32))

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("bmm batch_matmul".split(), (THREE, Tensor(GENERATOR.random((2, 4, 3), np.float32)))),
    **dict.fromkeys("mm matmul".split(), (X, W)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), (MASK, MASK)),
    **dict.fromkeys("reshape view".split(), (X, (4, 2))),
    "switch": (X.sum() > 0, X, Y),
    "switch_layer": (0, (X, Y)),
    "tuple_getitem": ((X, Y), 0),
    **dict.fromkeys("reshape_as view_as".split(), (X, Tensor(np.zeros((4, 2), np.float32)))),
    **dict.fromkeys("transpose permute".split(), (X, (1, 0))),
    **dict.fromkeys("swapaxes swapdims".split(), (THREE, 0, -1)),
    **dict.fromkeys("expand_dims unsqueeze flip chunk split cumsum cumprod logsumexp".split(), (X, 1)),
    **dict.fromkeys("broadcast_to expand".split(), (X, (3, 2, 4))),
    **dict.fromkeys("astype to type cast".split(), (X, ms.float16)),
    **dict.fromkeys("clip clamp clip_by_value".split(), (X, 0.3, 0.7)),
    **dict.fromkeys("var std".split(), (X, 0, 1, True)),
    **dict.fromkeys("sum mean prod max min amax amin argmax argmin reduce_sum reduce_mean".split(), (X, 1)),
    **dict.fromkeys("reduce_max reduce_min reduce_prod".split(), (X, 1)),
    **dict.fromkeys("all any reduce_all reduce_any".split(), (MASK, 1)),
    **dict.fromkeys("gather_elements gather_d".split(), (X, 1, SIGNS)), "gather_nd": (X, WHOLE[:, 1:3] * 0),
    **dict.fromkeys("full_like".split(), (X, 2)),
    "invert": (PLACES,), "bitwise_and": (PLACES, PLACES), "bitwise_or": (PLACES, PLACES),
    "bitwise_xor": (PLACES, PLACES), "lerp": (X, Y, X), "addcdiv": (X, X, Y), "addcmul": (X, X, Y),
    "moveaxis": (X, 0, 1), "movedim": (X, 0, 1), "dot": (X, W), "addmv": (X[:, 0], X, X[0]), "addr": (X, X[:, 0], X[0]),
    "gcd": (PLACES, PLACES), "bitwise_left_shift": (PLACES, PLACES), "bitwise_right_shift": (PLACES, PLACES),
    "hstack": ((X, Y),), "vstack": ((X, Y),), "column_stack": ((X, Y),),
    "logical_not": (MASK,), "squeeze": (ONE, 1), "expand_as": (X, THREE[:1, :2].broadcast_to((3, 2, 4))),
    "tile": (X, (2, 1)), "repeat": (X, 2, 1), "type_as": (X, WHOLE), "masked_fill": (X, MASK, -1.0),
    "roll": (X, 1, 1), "pad": (X, (1, 2)), "linspace": (1, 2, 5), "einsum": ("ij,kj->ik", X, Y),
    "topk": (X, 2), "gather": (X, PLACES, 1), "concat": ((X, Y), 1), "cat": ((X, Y),), "stack": ((X, Y), 1),
    "strided_slice": (X, (0, 1), (2, 4), (1, 2)), "slice": (X, (0, 1), (2, 2)), "one_hot": (CLASSES, 4),
    "full": ((2, 3), 1.5), "zeros": ((2, 3),), "ones": ((2, 3),), "arange": (2, 9, 3), "eye": (2, 3),
    "fill": (ms.float32, (2, 3), 2), "scalar_to_array": (1.5,), "scalar_to_tensor": (3,),
    "dense": (X, Tensor(W.asnumpy().T.copy()), Tensor(np.ones(3, np.float32))),
    "layer_norm": (X, (4,), Tensor(np.ones(4, np.float32)), Tensor(np.zeros(4, np.float32))),
    "multi_margin_loss": (X, CLASSES), "multilabel_margin_loss": (X, ops.zeros_like(ops.cast(X, ms.int32))),
    "nll_loss": (X, CLASSES), "cross_entropy": (X, CLASSES), "clip_by_global_norm": ((X, Y), 0.5),
    "select": (MASK, X, Y), "where": (MASK, X, Y), "addn": ((X, Y),), "bias_add": (X, Y[0]), "dropout": (X, 0.5, False),
    "dropout_ext": (X, 0.5, False),
    "add_ext": (X, Y, 2), "sub_ext": (X, Y, 2),
    "flash_attention_score": (THREE, THREE, THREE, 2),
    **dict.fromkeys("soft_margin_loss hinge_embedding_loss".split(), (X, SIGNS)),
    **dict.fromkeys("margin_ranking_loss triplet_margin_loss gaussian_nll_loss".split(), (X, Y, X + Y)),
    **dict.fromkeys("binary_cross_entropy binary_cross_entropy_with_logits".split(), (X * 0.5, Y * 0.5, X)),
    "mixed_precision_cast": (ms.float16, (X, [Y, WHOLE])),
    "conv2d": (IMAGE, Tensor(GENERATOR.random((2, 2, 2, 2), np.float32))),
    "conv1d": (IMAGE[0], Tensor(GENERATOR.random((2, 4, 2), np.float32))),
    "conv3d": (IMAGE[None], Tensor(GENERATOR.random((2, 1, 2, 2, 2), np.float32))),
    "avg_pool2d": (IMAGE, 2), "max_pool2d": (IMAGE, 2), "avg_pool1d": (IMAGE[0], 2),
    "adaptive_avg_pool1d": (IMAGE[0], 2),
    "avg_pool3d": (IMAGE[None], 1), "max_pool3d": (IMAGE[None], 1), "adaptive_avg_pool2d": (IMAGE, 2),
    "adaptive_avg_pool3d": (IMAGE[None], 1), "interpolate": (IMAGE, (2, 3)), "group_norm": (IMAGE, 2),
    "batch_norm": (IMAGE, ZEROS, ZEROS + 1, ZEROS + 2, ZEROS),
    **dict.fromkeys("pixel_shuffle lrn".split(), (IMAGE[:, :1], 1)), "pixel_unshuffle": (IMAGE, 2),
    "channel_shuffle": (IMAGE, 2), "unfold": (IMAGE, 2), "fold": (IMAGE.reshape(1, 8, 4), (3, 3), 2),
    **dict.fromkeys("upsample adaptive_max_pool2d".split(), (IMAGE, (2, 3))),
    **dict.fromkeys("adaptive_max_pool1d".split(), (IMAGE[0], 2)), "adaptive_max_pool3d": (IMAGE[None], 1),
    "lp_pool1d": (IMAGE[0], 2, 2), "lp_pool2d": (IMAGE, 2, 2),
    "max_unpool1d": (IMAGE[0, :, 0], SPREAD, 2), "max_unpool2d": (IMAGE[:, :1, :1], SPREAD[:1].reshape(1, 1, 1, 4), 2),
    "max_unpool3d": (IMAGE[None, :, :1, :1], SPREAD[:1].reshape(1, 1, 1, 1, 4), 2),
    "conv_transpose2d": (IMAGE, Tensor(GENERATOR.random((2, 3, 2, 2), np.float32)), None, 2),
    "grid_sample": (IMAGE, Tensor(GENERATOR.random((1, 3, 3, 2), np.float32))),
    "affine_grid": (THREE[:1, :2, :3], (1, 2, 3, 3)),
    "dropout1d": (IMAGE[0], 0.5, False), "dropout2d": (IMAGE, 0.5, False), "dropout3d": (IMAGE[None], 0.5, False),
    "rot90": (X, 1, (0, 1)), "meshgrid": (X[0], Y[0]), "tuple_to_array": ((1, 2, 3),),
    "clip_by_norm": (X, 0.5), "tensor_dot": (X, W, 1), "repeat_interleave": (X, 2, 1), "repeat_elements": (X, 2, 1),
    "apply_rotary_pos_emb_": (IMAGE, IMAGE, IMAGE, IMAGE, PLACES[:1]),
    "polar": (X, Y),
    **dict.fromkeys("cummax cummin logcumsumexp tensor_split median flip".split(), (X, 1)),
    **dict.fromkeys("hsplit atleast_1d atleast_2d atleast_3d".split(), (X,)), "hsplit": (X, 2), "vsplit": (X, 2),
    "dsplit": (THREE, 2), "narrow": (X, 1, 1, 2),
    "take": (X, PLACES), "t": (X,), "diagflat": (X, 1), "tril_indices": (2, 3), "triu_indices": (2, 3),
    "matrix_band_part": (X, 0, 1),
    "kron": (X, Y), **dict.fromkeys("dstack row_stack".split(), ((X, Y),)),
    **dict.fromkeys("scatter tensor_scatter_elements".split(), (X, 1, SIGNS % 4, Y)),
    "tensor_scatter_elements": (X, SIGNS % 4, Y, 1), "scatter_add": (X, 1, SIGNS % 4, Y),
    "index_select": (X, 0, PLACES), "index_fill": (X, 1, PLACES, 2.0), "index_add": (X, PLACES[:2], Y, 0),
    "diagonal_scatter": (X, Y[0, :2]),
    "reverse_sequence": (X, CLASSES, 1), "reverse": (X, [1]), "scatter_nd": (PLACES[:2, None], Y, (4, 4)),
    **dict.fromkeys(
        "tensor_scatter_update tensor_scatter_add tensor_scatter_sub tensor_scatter_mul tensor_scatter_div "
        "tensor_scatter_max tensor_scatter_min scatter_sub scatter_mul scatter_div scatter_max scatter_min".split(),
        (X, PLACES[:2, None], Y),
    ),
    **dict.fromkeys(
        "unsorted_segment_sum unsorted_segment_max unsorted_segment_min ".split(),
        (X, PLACES[:2], 3),
    ),
    "rms_norm": (X, Y[0]), "cdist": (X, Y), "renorm": (X, 2, 0, 0.5), "bitwise_not": (PLACES,),
    "polygamma": (1, X), "logit": (X * 0.5,),
    "top_k": (X, 2), "bucketize": (X, [0.2, 0.6]),
    "searchsorted": (X[0].sort()[0], X), "pdist": (X,),
    "moe_token_permute": (X, CLASSES), "moe_token_unpermute": (X, CLASSES // 2),
    "sequence_mask": (CLASSES, 4), "masked_select": (X, MASK), "mv": (X, Y[0]), "addmm": (X[:, :3], X, W),
    "baddbmm": (THREE[:, :, :3], THREE, Tensor(GENERATOR.random((2, 4, 3), np.float32))),
    "baddbmm_ext": (THREE[:, :, :3], THREE, Tensor(GENERATOR.random((2, 4, 3), np.float32))),
    "addbmm": (THREE[0, :, :3], THREE, Tensor(GENERATOR.random((2, 4, 3), np.float32))),
    "cross": (THREE[:, :, 0], THREE[:, :, 1]), "batch_dot": (THREE, THREE.transpose(0, 2, 1)), "outer": (X[0], Y[0]),
    "ger": (X[0], Y[0]), "stft": (THREE.reshape(24), 8),
    **dict.fromkeys(
        "det matrix_determinant slogdet log_matrix_determinant logdet inverse ".split(),
        (SQUARE,),
    ),
    **dict.fromkeys("cholesky qr svd matrix_norm adjoint".split(), (SQUARE,)),
    "cholesky": (SYMMETRIC,),
    "matrix_power": (SQUARE, 3),
    **dict.fromkeys("hamming_window hann_window ".split(), (5,)),
    **dict.fromkeys("fftfreq rfftfreq".split(), (5,)), "logspace": (0, 2, 5), "range": (1, 9, 2),
    "mirror_pad": (X, ((1, 0), (2, 1)), "REFLECT"), "fills": (X, 2.0), "aminmax": (X,), "histc": (X, 4),
    **dict.fromkeys("new_zeros new_ones new_empty".split(), (X, 3)),
    "new_full": (X, (3,), 2.0), "fill_diagonal": (X, 2.0), "sum_to_size": (X, 1, 4), "resize": (X, 3, 3),
    "choose": (PLACES, (X[0, :3], Y[0, :3])), "index_put": (X, (PLACES[:2], CLASSES), Y[0, 0]), "allclose": (X, X),
    "masked_scatter": (X, MASK, Y), "trace": (X,), "ptp": (X, 1), "view_as_real": (COMPLEX,),
    "einsum_ext": ("ij,kj->ik", X, Y), "view_as": (X, Tensor(np.zeros((4, 2), np.float32))),
    "mse_loss_ext": (X, Y), "add_rms_norm": (X, Y, Y[0]), "add_layer_norm": (X, Y, Y[0], X[0]),
    "rotary_position_embedding": (IMAGE, IMAGE[:, :1], IMAGE[:, :1]),
    "embedding": (CLASSES, X.T),
    "cosine_embedding_loss": (X, Y, SIGNS[0, :2]), "prelu": (X, Y[0, :1]), "threshold": (X, 0.3, 0.1),
}  # fmt: skip
"""The arguments of a function; a method's tensor stands first. Others take X, those of two tensors X and Y."""
METHOD_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "select": (X, MASK, Y), "where": (X, MASK, Y), "fill": (X, 2.0),
}  # fmt: skip
"""The arguments of a method whose forms are others."""
OF_TWO = """add sub subtract mul multiply div divide true_divide floor_div floor_divide floor_mod pow tensor_pow maximum
minimum logaddexp logaddexp2 float_power inner remainder fmod hypot atan2 arctan2 xlogy xdivy isclose
zeta
equal eq not_equal ne less lt less_equal le greater gt greater_equal ge mse_loss l1_loss
smooth_l1_loss huber_loss kl_div copysign heaviside fmax fmin ldexp tensor_add tensor_sub tensor_mul tensor_muls
tensor_div tensor_floordiv floordiv tensor_mod floormod truncate_div truncate_mod tensor_gt tensor_ge tensor_lt
tensor_le pows float_power_ext dist cosine_similarity vecdot""".split()

OWN_ARGUMENTS = {
    "the shape may stand without parentheses": "reshape view expand broadcast_to tile transpose permute t",
    "small integers become Int32": "cumsum",
    "the arguments have other names or another order": "sum argmax argmin unsqueeze take bernoulli fill uniform",
    "a method starts at dimension 0, the function at 1": "flatten",
    "a method has more than one form": """max min add sub gather sort argsort std var repeat_interleave index_add select
        where trace unique""",
    "the function changes a parameter": "scatter_add scatter_div scatter_max scatter_min scatter_mul",
}
"""Names that are functions too, but as methods take their arguments otherwise, as in MindSpore."""
ONLY_METHODS = {
    "ops has the value itself, or the operator Cast": "astype to type float int long half bool",
    "ops has copies by assignment": "copy clone contiguous",
    "ops has shape, rank and size": "dim ndimension",
    "ops has reshape, broadcast_to and swapaxes": "view reshape_as",
    "ops has repeat_interleave": "repeat",
    "MindSpore has no function of the name": """allclose argmax_with_value argmin_with_value bfloat16 byte choose double
        fill_diagonal index_put is_contiguous is_signed masked_scatter nelement new_empty new_full new_ones new_zeros
        ptp resize scatter_sub short sum_to_size""",
    "they change a tensor in place: tests/mindspore_api/common/test_changes_in_place.py": """
        add_ addmm_ addr_ bernoulli_ clamp_ copy_ div_ erfinv_ exp_ exponential_ fill_ fill_diagonal_ floor_
        floor_divide_ index_add_ index_copy_ index_fill_ index_put_ log_ masked_fill_ masked_scatter_ mul_ normal_
        put_ random_ remainder_ scatter_ scatter_add_ sigmoid_ sign_ sub_ tanh_ uniform_ zero_""",
}
"""Methods without a function of their name."""
ONLY_FUNCTIONS = {
    "no tensor stands first": """print_
        atleast_1d atleast_2d atleast_3d
        dstack einsum_ext fftfreq hamming_window hann_window logspace
        polygamma randint randperm range rfftfreq row_stack scatter_nd tril_indices
        triu_indices full zeros ones arange eye scalar_to_array scalar_to_tensor concat cat stack addn
        clip_by_norm tensor_dot hstack vstack column_stack
        clip_by_global_norm tensordump einsum linspace meshgrid tuple_to_array rand randn normal
        standard_normal switch switch_layer make_tuple tuple_getitem""",
    "MindSpore has no method of the name": """embedding multi_margin_loss mixed_precision_cast
        multilabel_margin_loss add_layer_norm add_rms_norm deepcopy rotary_position_embedding swiglu
        baddbmm_ext batch_dot bernoulli_ext
        bucketize cdist cosine_similarity dist
        dyn_shape float_power_ext floordiv floormod gumbel_softmax isnan_ext kron
        matrix_band_part matrix_norm mirror_pad mse_loss_ext mv
        pdist pows rand_like randint_like randn_like rms_norm sequence_mask shuffle stft
        tensor_add tensor_div tensor_exp tensor_expm1 tensor_floordiv tensor_ge tensor_gt tensor_le tensor_lt tensor_mod
        tensor_mul tensor_muls tensor_scatter_add tensor_scatter_div tensor_scatter_elements tensor_scatter_max
        tensor_scatter_min tensor_scatter_mul tensor_scatter_sub tensor_scatter_update tensor_sub truncate_div
        truncate_mod unsorted_segment_sum vecdot view_as_real zeros_like ones_like full_like one_hot
        strided_slice slice dense
        log_softmax flash_attention_score layer_norm mse_loss l1_loss nll_loss cross_entropy dropout reduce_sum
        reduce_mean clip_by_value batch_matmul bias_add floor_mod gelu relu6 silu softplus stop_gradient tensor_pow
        exp2 zeta add_ext sub_ext cast
        binary_cross_entropy binary_cross_entropy_with_logits kl_div smooth_l1_loss huber_loss soft_margin_loss
        hinge_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss
        cosine_embedding_loss triplet_margin_loss gaussian_nll_loss
        fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn
        fftshift ifftshift polar rrelu
        fast_gelu elu celu selu leaky_relu prelu mish softshrink tanhshrink hardswish hardsigmoid hardtanh threshold
        logsigmoid softsign glu softmin dropout_ext reduce_max reduce_min reduce_prod reduce_all reduce_any
        var_mean std_mean vector_norm pad diag_embed unstack gather_d
        bessel_i0 bessel_i0e bessel_i1 bessel_i1e
        conv1d conv2d conv3d avg_pool1d avg_pool2d avg_pool3d max_pool2d max_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d batch_norm group_norm interpolate
        apply_rotary_pos_emb_ adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d affine_grid
        channel_shuffle conv_transpose2d dropout1d dropout2d dropout3d grid_sample lp_pool1d lp_pool2d
        lrn max_unpool1d max_unpool2d max_unpool3d moe_token_permute moe_token_unpermute pixel_shuffle
        pixel_unshuffle repeat_elements upsample""",
    "an attribute says it": "shape rank size dtype",
    "it changes a parameter": """assign assign_add assign_sub inplace_index_add scatter_nd_add scatter_nd_div
        scatter_nd_max scatter_nd_min scatter_nd_mul scatter_nd_sub scatter_nd_update scatter_update""",
    "a graph's statement, nothing to compute": "depend",
}


def listed(reasons: dict[str, str]) -> set[str]:
    return {name for names in reasons.values() for name in names.split()}


NOT_CALLED = {
    *"assign assign_add assign_sub depend tensordump print_ nonzero dtype".split(),
    *"rand randn normal uniform standard_normal bernoulli".split(),
    *"unique unique_consecutive bincount argwhere is_floating_point is_complex".split(),
    *"""rand_like randn_like randint randint_like randperm shuffle multinomial random_categorical gumbel_softmax
    bernoulli_ext""".split(),
    *(name for name in method_names() if name.endswith("_")),
    *listed({"": ONLY_FUNCTIONS["it changes a parameter"]}),
}
"""They change a parameter, order statements, write a file, draw other numbers at every call, or need what is known at
compile time: tests of their own call them. No graph returns a dtype."""
CHANGING = listed({"": OWN_ARGUMENTS["the function changes a parameter"]})
PROPERTIES = {"type"}
"""A Tensor outside of a graph says with it what it is, element type and shape."""


def functions() -> list[str]:
    """Every lower-case name of ops that is a function over operators."""
    elsewhere = {
        "grad", "value_and_grad", "reshard", "partial", "functional", "constexpr", "make_range", "add_flags",
        "identity", "barrier", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap", "is_tensor",
        "shard", "dropout_ext_op", "tuple_len", "prim_attr_register",
    }  # fmt: skip
    changes = {name for name in method_names() if name.endswith("_")}
    return [name for name in dir(ops) if name[0].islower() and name not in elsewhere | changes]


def arguments(name: str) -> tuple[Any, ...]:
    return ARGUMENTS.get(name, (X, Y) if name in OF_TWO else (X,))


def plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value.asnumpy() if isinstance(value, Tensor) else value


def compiled(function: Callable[..., Any], *inputs: Any) -> Any:
    """The result of the graph of a function."""
    traced = trace(function, list(inputs))
    traced.graph.verify()
    feeds = {p.name: x.asnumpy() for p, x in zip(traced.graph.parameters, inputs, strict=False)} | traced.constants
    return plain(traced.rebuild(run_global(traced.graph, feeds)))


def assert_same(left: Any, right: Any) -> None:
    if isinstance(left, tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    else:
        assert left == right


def test_functions_are_methods_where_mindspore_has_them() -> None:
    methods, own = set(method_names()), set(functions())
    assert own - methods == listed(ONLY_FUNCTIONS)
    assert methods - own == listed(ONLY_METHODS)


def test_methods_are_the_functions_of_their_names() -> None:
    both = set(functions()) & set(method_names())
    assert {name for name in both if find_method(name) is not getattr(ops, name)} == both & listed(OWN_ARGUMENTS)


def in_parts(names: set[str]) -> pytest.MarkDecorator:
    """Names in alphabetic parts: to begin a test takes as long as to compile a function."""
    ordered = sorted(names)
    parts = [ordered[i : i + 20] for i in range(0, len(ordered), 20)]
    return pytest.mark.parametrize("names", parts, ids=lambda part: f"{part[0]}..{part[-1]}")


@contextlib.contextmanager
def named(name: str) -> Generator[None]:
    """An error says by which function it came."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"of {name}")
        raise


@in_parts(set(method_names()) - PROPERTIES - NOT_CALLED)
def test_a_method_gives_the_same_in_a_graph_and_outside(names: list[str]) -> None:
    for name in names:
        tensor, *rest = METHOD_ARGUMENTS.get(name) or arguments(name)

        def call(x, name=name, rest=rest):
            return getattr(x, name)(*rest)

        with named(name):
            eager = call(tensor)
            assert eager is not tensor
            assert_same(plain(eager), compiled(call, tensor))
            assert_same(plain(eager), plain(getattr(Tensor, name)(tensor, *rest)))


@in_parts(set(functions()) - NOT_CALLED - CHANGING)
def test_a_function_gives_the_same_in_a_graph_and_outside(names: list[str]) -> None:
    for name in names:
        given = arguments(name)
        tensor = next((item for item in given if isinstance(item, Tensor)), X)

        def call(x, name=name, given=given, tensor=tensor):
            return getattr(ops, name)(*[x if item is tensor else item for item in given])

        with named(name):
            assert_same(plain(call(tensor)), compiled(call, tensor))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.split(x, 3, 1),
        lambda x: x.split([1, 3], axis=-1),
        lambda x: ops.split(x, [1, 3], axis=-1),
        lambda x: ops.chunk(x, 3, 1),
        lambda x: x.sum(keepdim=True),
        lambda x: x.mean(axis=(0, 1), keepdims=True),
        lambda x: x.add(other=1),
        lambda x: ops.add(input=x, other=2),
        lambda x: x.pow(exponent=2),
        lambda x: x.argmax(),
        lambda x: ops.argmax(x, keepdim=True),
        lambda x: x.cumsum(),
        lambda x: x.flatten("F"),
        lambda x: x.repeat([1, 3], 0),
        lambda x: x.clamp(max=0.5),
        lambda x: x.matmul(x[0]),
        lambda x: x[0].matmul(x[1]),
        lambda x: (x > 0.5).sum(0),
        lambda x: (x * 10).astype(ms.int32).mean(0),
        lambda x: (x > 0.5).add(2),
        lambda x: x.masked_fill(x > 0.5, ms.Tensor(2.0, ms.float16)),
        lambda x: ((x * 10).astype(ms.int32).isfinite(), (x > 0.5).isnan(), (x * 10).astype(ms.int64).floor()),
        lambda x: ops.mean(x, 0) + ops.var(x, 0, keepdims=True),
    ],
)  # fmt: skip
def test_forms_of_calls_agree(call: Callable[..., Any]) -> None:
    assert_same(plain(call(X)), compiled(call, X))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.split([1, 2], 1), "split(): the parts (1, 2) do not add up to 4, the size of dimension 1"),
        (lambda x: ops.split(x, 0), "split(): the size of a part must be positive, not 0"),
        (lambda x: x.chunk(0), "chunk(): the number of parts must be positive, not 0"),
        (lambda x: x.clip(), "clamp() needs a minimum or a maximum"),
        (lambda x: x.astype("Complex7"), "'Complex7' is not an element type"),
        (lambda x: x.mean(2), "ReduceMean: axis 2 is out of range for 2 dimensions"),
        (lambda x: x.sum(1, 2, 3, 4), "Tensor.sum(): too many positional arguments"),
        (lambda x: x.clip(least=1), "Tensor.clip(): got an unexpected keyword argument 'least'"),
        (lambda x: x.mean(last=1), "mean(): unexpected argument 'last'"),
        (lambda x: x.abs(1), "Abs: these arguments do not fit: 2 by position"),
        (lambda x: x.mul(1, ather=2), "Mul: these arguments do not fit: there is no 'ather'"),
        (lambda x: x.flatten(0, 1, 1), "Tensor.flatten(): 3 arguments by position do not fit"),
        (lambda x: ops.cummax(x, "0"), "Cummax: axis must be int, not '0'"),
        (lambda x: ops.gather_nd(x, PLACES, 1), "GatherNd: these arguments do not fit: 3 by position"),
        (lambda x: ops.scatter_nd_add(x, PLACES, x, 1), "ScatterNdAdd: use_locking must be bool, not 1"),
        (lambda x: ops.arange(1, float("inf")), "Range: limit must be finite, not inf"),
        (lambda x: ops.neg(x > 0), "Neg: input is Bool, which has no sign; logical_not turns it round"),
        (lambda x: ops.isclose(x, x, "1"), "IsClose: rtol must be a number known at compile time, not '1'"),
        (
            lambda x: ops.interpolate(x[None], scale_factor=(2.0, 2.0)),
            "interpolate: scale_factor (2.0, 2.0) must be 1 numbers for an input of shape (1, 2, 4)",
        ),
        (
            lambda x: ops.interpolate(x[None], scale_factor=1.3),
            "interpolate: scale_factor 1.3 of (4,) gives no whole sizes: give size, or recompute_scale_factor=True",
        ),
        (lambda x: mnp.mean(None), "numpy.mean(): a must be a tensor, not None"),
        (lambda x: mnp.eye(2, "3"), "numpy.eye(): these arguments do not fit: N=2, M='3'"),
        (lambda x: ops.Abs()(name=x), "Abs has no operand of this name, or has it by position: name"),
    ],
)
def test_mistakes_are_told_in_the_same_words(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(MspcError) as outside:
        call(X)
    with pytest.raises(MspcError) as inside:
        trace(call, [X])
    assert outside.value.message == inside.value.message == message
    assert inside.value.kind is not None
    assert issubclass(inside.value.kind, TypeError | ValueError)
    assert outside.value.location is not None
    assert outside.value.location.file.endswith("test_three_ways.py")


def test_a_parameter_and_a_constant_have_the_methods_too() -> None:
    weight = ms.Parameter(Tensor(np.ones((4, 4), np.float32)), "w")

    def call(x):
        return x @ weight.sum(0, keepdims=True).broadcast_to((4, 4)) + Y.abs().add(x)

    assert_same(plain(call(X)), compiled_with(call, {"w": np.ones((4, 4), np.float32)}))


def compiled_with(call: Callable[..., Any], weights: dict[str, np.ndarray]) -> Any:
    traced = trace(call, [X])
    return plain(traced.rebuild(run_global(traced.graph, {"x": X.asnumpy()} | weights | traced.constants)))


def test_a_missing_attribute_is_an_attribute_error() -> None:
    assert not hasattr(X, "summ")
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'summ'"):
        X.summ  # noqa: B018  # the access is what is tested
    with pytest.raises(AttributeError, match="type object 'Tensor' has no attribute 'summ'"):
        Tensor.summ  # noqa: B018  # the access is what is tested
    assert {"sum", "abs", "asnumpy", "shape"} <= set(dir(X))


NEW = '''
import numpy as np

from mspc import Tensor, nn, ops
from mspc.mindspore_api import index
from mspc.ops.bases import Unary
from mspc.ops.op import sample


class Scaled(Unary):
    """x times a factor, plus a shift."""

    factor: float = 2.0
    shift: float = 0.0
    samples = (sample((4, 8)),)

    def run(self, be, x):
        return x * self.factor + self.shift


index.__path__.append("tables")

class Net(nn.Cell):
    def construct(self, x):
        return x.scaled(shift=1.0) + ops.scaled(x, 3.0) + ops.scale_it(x) + ops.Scaled(factor=0.5)(x)


x = Tensor(np.ones((2, 3), np.float32))
print(x.scaled(3.0).asnumpy()[0, 0], ops.scaled(x, 3.0, 0.5).asnumpy()[0, 0], ops.scale_it(x).asnumpy()[0, 0])
print(Net()(x).asnumpy()[0, 0], Tensor.scaled(x, shift=0.5).asnumpy()[0, 0])
'''


def test_a_new_operator_has_its_function_and_its_method_from_a_row(tmp_path: Any) -> None:
    (tmp_path / "new.py").write_text(NEW)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "ops-new.txt").write_text("scaled scale_it .scaled = Scaled\n")
    done = subprocess.run([sys.executable, "new.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3.0 3.5 2.0\n8.5 2.5\n"), done.stderr


HALVED = '''
from mspc.mindspore_api import ops


def halved(input, times=1):
    """input / 2, as often as wanted."""
    return input if times == 0 else halved(ops.Mul()(input, 0.5), times - 1)
'''
ROWS = "from mspc.mindspore_api.ops.function.halves: halved .halved .half_of=halved\n"
LAYER = '''
from mspc.mindspore_api import ops
from mspc.mindspore_api.nn.cell import Cell


class Halved(Cell):
    """x / 2."""

    def construct(self, x):
        return x.halved(times=2) + ops.halved(x) + x.half_of()
'''
SCRIPT = """
import importlib
importlib.import_module("mspc.mindspore_api.ops.function").__path__.append("functions")
importlib.import_module("mspc.mindspore_api.index").__path__.append("functions")
importlib.import_module("mspc.mindspore_api.nn").__path__.append("layers")
import numpy as np
from mspc import Tensor, nn, ops
x = Tensor(np.ones((2, 3), np.float32))
print(x.halved(2).asnumpy()[0, 0], ops.halved(x).asnumpy()[0, 0], nn.Halved()(x).asnumpy()[0, 0])
print("halved" in dir(ops), "half_of" in dir(x), "Halved" in nn.__all__)
"""


def test_a_new_function_is_found_by_its_row_and_a_new_cell_in_its_file(tmp_path: Any) -> None:
    files = {"functions/halves.py": HALVED, "functions/ops-halves.txt": ROWS, "layers/halved.py": LAYER,
             "script.py": SCRIPT}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.25 0.5 1.25\nTrue True True\n"), done.stderr

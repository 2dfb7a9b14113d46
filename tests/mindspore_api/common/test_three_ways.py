"""`ops.f(x)`, `x.f()` in a compiled function and `x.f()` on a Tensor outside of one are one definition, with equal
results and messages. tests/oracle/test_judges.py does the same for every function and method of its tables.
"""

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from interpret import run_global

import mspc as ms
import mspc.numpy as mnp
from mspc import mint
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.ops.method_table import find_method, method_names
from tests.errors import error_of
from tests.serving import run_process

GENERATOR = np.random.default_rng(3)
X = Tensor(GENERATOR.random((2, 4), np.float32) + 0.1)
Y = Tensor(GENERATOR.random((2, 4), np.float32) + 0.1)
W = Tensor(GENERATOR.random((4, 3), np.float32))
THREE = Tensor(GENERATOR.random((2, 3, 4), np.float32))
WHOLE = Tensor(np.array([[3, -1, 0, 2], [5, 1, -4, 7]], np.int32))
PLACES = Tensor(np.array([1, 0, 1], np.int32))
CLASSES = Tensor(np.array([1, 3], np.int32))
SIGNS = Tensor(np.array([[1, -1, 1, -1], [-1, -1, 1, 1]], np.int32))

IMAGE = Tensor(GENERATOR.random((1, 2, 4, 4), np.float32))
ZEROS = Tensor(np.zeros(2, np.float32))
SPREAD = Tensor(np.array([[0, 3, 5, 6], [1, 2, 4, 7]]))

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "switch": (X.sum() > 0, X, Y),
    **dict.fromkeys("max min".split(), (X, 1)), "bitwise_left_shift": (PLACES, PLACES),
    "bitwise_right_shift": (PLACES, PLACES), "fill": (ms.float32, (2, 3), 2),
    "layer_norm": (X, (4,), Tensor(np.ones(4, np.float32)), Tensor(np.zeros(4, np.float32))),
    "multi_margin_loss": (X, CLASSES), "multilabel_margin_loss": (X, ops.zeros_like(ops.cast(X, ms.int32))),
    "nll_loss": (X, CLASSES), "cross_entropy": (X, CLASSES), "clip_by_global_norm": ((X, Y), 0.5),
    "dropout": (X, 0.5, False), "dropout_ext": (X, 0.5, False), "flash_attention_score": (THREE, THREE, THREE, 2),
    **dict.fromkeys("soft_margin_loss hinge_embedding_loss".split(), (X, SIGNS)),
    **dict.fromkeys("margin_ranking_loss triplet_margin_loss".split(), (X, Y, X + Y)),
    **dict.fromkeys("binary_cross_entropy binary_cross_entropy_with_logits".split(), (X * 0.5, Y * 0.5, X)),
    "mixed_precision_cast": (ms.float16, (X, [Y, WHOLE])),
    "conv2d": (IMAGE, Tensor(GENERATOR.random((2, 2, 2, 2), np.float32))),
    "conv1d": (IMAGE[0], Tensor(GENERATOR.random((2, 4, 2), np.float32))),
    "conv3d": (IMAGE[None], Tensor(GENERATOR.random((2, 1, 2, 2, 2), np.float32))), "avg_pool2d": (IMAGE, 2),
    "max_pool2d": (IMAGE, 2), "avg_pool1d": (IMAGE[0], 2), "adaptive_avg_pool1d": (IMAGE[0], 2),
    "avg_pool3d": (IMAGE[None], 1), "max_pool3d": (IMAGE[None], 1), "adaptive_avg_pool2d": (IMAGE, 2),
    "adaptive_avg_pool3d": (IMAGE[None], 1), "interpolate": (IMAGE, (2, 3)), "group_norm": (IMAGE, 2),
    "batch_norm": (IMAGE, ZEROS, ZEROS + 1, ZEROS + 2, ZEROS),
    "pixel_shuffle": (IMAGE[:, :1], 1), "pixel_unshuffle": (IMAGE, 2),
    "channel_shuffle": (IMAGE, 2), "unfold": (IMAGE, 2), "fold": (IMAGE.reshape(1, 8, 4), (3, 3), 2),
    **dict.fromkeys("upsample adaptive_max_pool2d".split(), (IMAGE, (2, 3))), "adaptive_max_pool1d": (IMAGE[0], 2),
    "adaptive_max_pool3d": (IMAGE[None], 1),
    "max_unpool2d": (IMAGE[:, :1, :1], SPREAD[:1].reshape(1, 1, 1, 4), 2),
    "conv_transpose2d": (IMAGE, Tensor(GENERATOR.random((2, 3, 2, 2), np.float32)), None, 2),
    "grid_sample": (IMAGE, Tensor(GENERATOR.random((1, 3, 3, 2), np.float32))),
    "affine_grid": (THREE[:1, :2, :3], (1, 2, 3, 3)), "dropout1d": (IMAGE[0], 0.5, False),
    "dropout2d": (IMAGE, 0.5, False), "dropout3d": (IMAGE[None], 0.5, False), "rot90": (X, 1, (0, 1)),
    "meshgrid": (X[0], Y[0]), "tuple_to_array": ((1, 2, 3),), "clip_by_norm": (X, 0.5), "tensor_dot": (X, W, 1),
    "repeat_interleave": (X, 2, 1), "repeat_elements": (X, 2, 1), "polar": (X, Y), "rms_norm": (X, Y[0]),
    "moe_token_permute": (X, CLASSES), "moe_token_unpermute": (X, CLASSES // 2), "add_rms_norm": (X, Y, Y[0]),
    "add_layer_norm": (X, Y, Y[0], X[0]), "rotary_position_embedding": (IMAGE, IMAGE[:, :1], IMAGE[:, :1]),
    "embedding": (CLASSES, X.T), "cosine_embedding_loss": (X, Y, SIGNS[0, :2]), "prelu": (X, Y[0, :1]),
    "threshold": (X, 0.3, 0.1),
}  # fmt: skip
"""Arguments of functions that no table of tests/oracle calls, which tests compiled functions, too."""
OF_ONE = """celu conj deepcopy digamma dyn_shape elu fast_gelu fft fft2 fftn fftshift fliplr flipud gelu glu
hardshrink hardsigmoid hardswish hardtanh ifft ifft2 ifftn ifftshift imag irfft irfft2 irfftn isnan_ext leaky_relu
lgamma log_softmax logsigmoid mish real relu relu6 rfft rfft2 rfftn selu sigmoid silu softmax softmin
softplus softshrink softsign stop_gradient swiglu tanh tanhshrink tensor_exp tensor_expm1""".split()
"""Functions of one tensor, which no such table calls either."""
OF_TWO = """floordiv floormod huber_loss kl_div l1_loss mse_loss pows smooth_l1_loss tensor_add tensor_floordiv
tensor_ge tensor_gt tensor_le tensor_lt tensor_mod tensor_mul tensor_muls tensor_sub zeta""".split()
"""Functions of two tensors."""

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


def listed(reasons: dict[str, str]) -> set[str]:
    return {name for names in reasons.values() for name in names.split()}


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


def test_methods_are_the_functions_of_their_names() -> None:
    both = {name for name in dir(ops) if name[0].islower() and not name.endswith("_")} & set(method_names())
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


@in_parts({*ARGUMENTS, *OF_ONE, *OF_TWO})
def test_a_function_gives_the_same_in_a_graph_and_outside(names: list[str]) -> None:
    for name in names:
        given = ARGUMENTS.get(name, (X, Y) if name in OF_TWO else (X,))
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
        (lambda x: ops.isclose(x, x, "1"), "ops.isclose(): rtol must be a number, not '1'"),
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
        (lambda x: ops.full((2,), 7, like=1), "ops.full(): got an unexpected keyword argument 'like'"),
        (lambda x: ops.split(x), "ops.split(): missing a required argument: 'split_size_or_sections'"),
        (lambda x: ops.sum(3.5), "ops.sum(): input must be a tensor, not 3.5"),
        (lambda x: ops.std(x, 0, "a"), "ops.std(): ddof must be an int or True or False, not 'a'"),
        (lambda x: ops.masked_fill(x, x > 1, "a"), "ops.masked_fill(): value must be a number or a tensor, not 'a'"),
        (lambda x: ops.topk(x, 2, 5), "topk: axis 5 is out of range for 2 dimensions"),
        (lambda x: ops.flatten(x, "Z"), "flatten(): order 'Z' is neither 'C' nor 'F'"),
        (lambda x: ops.flatten(x, start_dim=1, end_dim=0), "flatten(): start_dim 1 is after end_dim 0"),
        (lambda x: ops.div(x, x, rounding_mode="up"), "div(): rounding_mode is 'up', not 'floor', 'trunc' or None"),
        (lambda x: ops.slice(x, (0, 1), (1, 4)), "slice(): dimension 1 has 4 elements, not 4 from 1 on"),
        (lambda x: ops.clip_by_global_norm((x,), -1), "clip_by_global_norm(): clip_norm must be above 0, not -1"),
        (lambda x: ops.Cdist(-1.0)(x, x), "Cdist: p is -1.0, not a number from 0 to inf"),
        (lambda x: mint.narrow(x, 1, 2, 9), "narrow(): dimension 1 has 4 elements, not 9 from 2 on"),
        (lambda x: mint.topk(x, 2, largest="no"), "mint.topk(): largest must be True or False, not 'no'"),
        (lambda x: x.astype(ms.uint8) + 300, "300 is no number of UInt8"),
    ],
)
def test_mistakes_are_told_in_the_same_words(call: Callable[..., Any], message: str) -> None:
    error = error_of(call, X)
    error = error_of(trace, call, [X])
    assert error.message == error.message == message
    assert error.kind is not None
    assert issubclass(error.kind, TypeError | ValueError)
    assert error.location is not None
    assert error.location.file.endswith("test_three_ways.py")


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
    done = run_process(sys.executable, "new.py", cwd=tmp_path)
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
    done = run_process(sys.executable, "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0.25 0.5 1.25\nTrue True True\n"), done.stderr

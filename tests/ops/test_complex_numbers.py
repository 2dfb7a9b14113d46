"""Complex numbers: who takes them, what becomes of their types and of their text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, ops
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Graph, Parameter
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import BOOL, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT32, DType, TensorType
from mspc.ops.bases import promoted
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Mul
from mspc.ops.math.fourier import FFTN, IRFFTN, RFFTN
from mspc.ops.nn.activation import ReLU
from mspc.ops.op import REGISTRY
from mspc.runtime.gpu.executor import GpuExecutor


def parameter(dtype: DType, *shape: int) -> Parameter:
    return Parameter("x", TensorType(dtype, shape))


def test_an_operator_of_real_numbers_says_that_it_takes_no_complex_ones() -> None:
    with pytest.raises(MspcError) as refused:
        Builder(Graph("main")).emit(ReLU(), parameter(COMPLEX64, 4))
    assert "ReLU: input 0 is <Tensor[Complex64], (4)>; the operator takes no complex numbers" in str(refused.value)
    assert refused.value.kind is TypeError


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        (COMPLEX64, FLOAT32, COMPLEX64), (FLOAT64, COMPLEX64, COMPLEX128), (COMPLEX64, COMPLEX128, COMPLEX128),
        (BOOL, COMPLEX64, COMPLEX64), (COMPLEX64, INT32, COMPLEX64), (FLOAT16, COMPLEX64, COMPLEX64),
    ],
)  # fmt: skip
def test_complex_numbers_beat_all_others(left: DType, right: DType, both: DType) -> None:
    assert promoted(left, right) == promoted(right, left) == both


NUMBERS = [1 + 2j, complex(-0.0, 1e-30), complex(float("inf"), float("nan")), complex(0.1, -float("inf"))]


@pytest.mark.parametrize("dtype", [COMPLEX64, COMPLEX128])
def test_constants_read_back_to_the_same_bits(dtype: DType) -> None:
    graph = Graph("main")
    x = parameter(dtype, len(NUMBERS))
    graph.parameters.append(x)
    builder = Builder(graph)
    graph.results = [builder.emit(Mul(), x, builder.constant(np.array(NUMBERS, dtype.numpy), dtype))]
    text = print_graph(graph)
    read = parse(text, REGISTRY).main
    constant = read.nodes[0].inputs[1]
    assert constant.value.tobytes() == np.array(NUMBERS, dtype.numpy).tobytes()  # type: ignore[attr-defined]
    assert print_graph(read) == text


@pytest.mark.parametrize("wrong", ["1.0", "1.0&", "1.0&2.0&3.0", "1.0&true"])
def test_a_text_that_is_no_complex_number_is_refused(wrong: str) -> None:
    graph = Graph("main")
    x = parameter(COMPLEX64, 1)
    graph.parameters.append(x)
    builder = Builder(graph)
    graph.results = [builder.emit(Mul(), x, builder.constant(np.array([1 + 2j], np.complex64), COMPLEX64))]
    text = print_graph(graph)
    assert "1.0&2.0" in text
    with pytest.raises(MspcError):
        parse(text.replace("1.0&2.0", wrong), REGISTRY)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.fft(x, 0), "FFTN: dimension 1 would have 0 points"),
        (lambda x: ops.fft(x, 4, 2), "FFTN: axis 2 is out of range for 2 dimensions"),
        (lambda x: ops.fft(x, 4, 0, "both"), "FFTN: norm is 'both', not one of 'backward', 'forward', 'ortho'"),
        (lambda x: ops.FFTN()(x, (2, 2), (0,)), "FFTN: s (2, 2) must be a size for each of 1 dimensions"),
        (lambda x: ops.fft2(x, None, (1, 1)), "FFTN: dim (1, 1) must name dimensions, each once"),
        (lambda x: ops.rfft(x), "RFFTN: input 0 is Complex64, and must be real"),
    ],
)
def test_transforms_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError, TypeError)) as refused:
        call(Tensor(np.ones((4, 3), np.complex64)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("op", "legal"), [(FFTN(dim=(1,)), (4, 1)), (RFFTN(dim=(0,)), (1, 6)), (IRFFTN(dim=(-1,)), (4, 1))]
)
def test_a_transform_is_cut_along_other_dimensions_alone(op: Any, legal: tuple[int, ...]) -> None:
    rule = op.parsed_rule(TensorType(COMPLEX64 if not op.takes_real else FLOAT32, (4, 6)))
    assert tuple(rule.sizes[f] if f not in rule.frozen else 1 for (f,) in rule.inputs[0]) == legal


def test_complex_tensors_of_scripts() -> None:
    x = Tensor(np.array([3 + 4j], np.complex64))
    assert x.dtype == ms.complex64
    assert ops.ComplexAbs()(x).asnumpy().tolist() == [5.0]
    assert ops.cast(x, ms.float32).asnumpy().tolist() == [3.0]
    assert (x * 2.0).asnumpy().tolist() == [6 + 8j]


def test_gpus_exchange_no_complex_numbers() -> None:
    graph = Graph("main")
    x = parameter(COMPLEX64, 4)
    graph.parameters.append(x)
    graph.results = [Builder(graph).emit(AllReduce(rank_list=(0, 1)), x)]

    class Device:
        comm = type("Comm", (), {"rank": 0})()

    with pytest.raises(MspcError, match=r"AllReduce.*: GPUs cannot exchange complex numbers"):
        GpuExecutor(graph, Device(), {})


def test_outside_of_a_network_no_imaginary_part_is_dropped() -> None:
    numbers = np.array([1 + 2j, 3 - 1j], np.complex64)
    x = Tensor(numbers)
    assert (ops.sum(x).dtype, ops.sum(x).item()) == (COMPLEX64, 4 + 1j)
    assert (ops.mean(x).item(), ops.prod(x).item()) == (2 + 0.5j, 5 + 5j)
    np.testing.assert_allclose(ops.exp(x).asnumpy(), np.exp(numbers), rtol=1e-6)
    for function in (ops.sigmoid, ops.relu, ops.erf, ops.sort, ops.norm, lambda x: ops.logsumexp(x, 0)):
        with pytest.raises(TypeError, match=r"takes no complex numbers|input is Complex64, not real"):
            function(x)

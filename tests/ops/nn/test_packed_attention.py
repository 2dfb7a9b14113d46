"""Attention whose query, key and value are one operand: the same numbers as apart, no copies, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import FLOAT16, FLOAT32, TensorType, TupleType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.op import REGISTRY, Op
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.ops.cuda.cuda_tensor_cores import TensorCores
from tests.ops.nn.test_attention_launch import Fusing
from tests.ops.simulate import BACKEND

B, S, N, D = 2, 20, 4, 32
LAYOUTS = ("BSND", "BSH", "SBH", "BNSD")
FORMS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, N),
    "causal": ({"sparse_mode": 2}, N),
    "fewer heads of key": ({}, 2),
    "one head of key, causal": ({"sparse_mode": 3}, 1),
    "shift and mask": ({"optional": ("real_shift", "attn_mask")}, 2),
}


def by_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """[batch, heads, sequence, depth] in a layout, contiguous."""
    turned = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}[layout]
    x = np.ascontiguousarray(x.transpose(turned))
    return x.reshape(*x.shape[:2], -1) if layout in ("BSH", "SBH") else x


def heads_axis(layout: str) -> int:
    return 1 if layout == "BNSD" else 2


class Pair:
    """An attention and its gradients on one operand and on three. apart, packed: the inputs of the forward operator."""

    def __init__(self, form: str, layout: str, dtype: Any = np.float64) -> None:
        attributes, m = FORMS[form]
        draw = np.random.default_rng(len(form)).standard_normal
        parts = [by_layout(draw((B, n, S, D)).astype(dtype), layout) for n in (N, m, m)]
        self.dout = by_layout(draw((B, N, S, D)).astype(dtype), layout)
        optional: list[np.ndarray] = []
        if "optional" in attributes:
            optional = [draw((1, N, S, S)).astype(dtype), np.eye(S, dtype=np.bool_)]
        self.axis = heads_axis(layout)
        self.apart = [*parts, *optional]
        self.packed = [np.concatenate(parts, self.axis), *optional]
        self.settings = {"head_num": N, "scale_value": 0.2, "input_layout": layout, **attributes}
        self.m = m

    def operator(self, of: type[Any], packed: bool) -> Any:
        return of(**self.settings, packed=self.m if packed else 0)

    def backward(self, packed: bool, result: Any) -> list[np.ndarray]:
        """The operands of the gradient; those of the shift's are all but the last."""
        inputs = self.packed if packed else self.apart
        first = 1 if packed else 3
        return [*inputs[:first], self.dout, *inputs[first:], result[0], result[3]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_numpy_gives_the_same_numbers(form: str, layout: str) -> None:
    pair = Pair(form, layout)
    wanted = pair.operator(FlashAttentionScore, False).run(BACKEND, *pair.apart)
    found = pair.operator(FlashAttentionScore, True).run(BACKEND, *pair.packed)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    grads = pair.operator(FlashAttentionScoreGrad, False).run(BACKEND, *pair.backward(False, wanted))
    gradient = pair.operator(FlashAttentionScoreGrad, True).run(BACKEND, *pair.backward(True, wanted))
    np.testing.assert_array_equal(gradient, np.concatenate(grads, pair.axis))
    if "optional" in pair.settings:
        shift = FlashAttentionScoreShiftGrad
        total = pair.operator(shift, False).run(BACKEND, *pair.backward(False, wanted)[:-1])
        np.testing.assert_array_equal(
            pair.operator(shift, True).run(BACKEND, *pair.backward(True, wanted)[:-1]), total
        )


@pytest.mark.parametrize("form", FORMS)
def test_types_and_operations(form: str) -> None:
    pair = Pair(form, "BSND")

    def types(arrays: list[np.ndarray]) -> list[TensorType]:
        return [TensorType(dtype_of(x.dtype), x.shape) for x in arrays]

    apart, packed = (pair.operator(FlashAttentionScore, one) for one in (False, True))
    assert packed.infer(*types(pair.packed)) == apart.infer(*types(pair.apart))
    assert packed.operations(types(pair.packed)) == apart.operations(types(pair.apart)) == 4 * B * N * S * S * D
    result = apart.run(BACKEND, *pair.apart)
    gradient = pair.operator(FlashAttentionScoreGrad, True)
    assert gradient.infer(*types(pair.backward(True, result))) == types(pair.packed)[0]
    assert gradient.operations(types(pair.backward(True, result))) == 10 * B * N * S * S * D


def test_text_reads_back_equal() -> None:
    x = Parameter("x", TensorType(FLOAT16, (B, S, 3 * N, D)))
    op = FlashAttentionScore(N, input_layout="BSND", packed=N)
    node = Node(op, [x], op.infer(x.tensor_type))
    graph = Graph("g")
    graph.parameters, graph.nodes, graph.results = [x], [node], [node]
    text = print_graph(graph)
    assert "packed: 4" in text
    read = parse(text, REGISTRY, file="g.ir").main
    assert read.nodes[0].op == op
    assert print_graph(read) == text


MISTAKES: dict[str, tuple[dict[str, Any], tuple[tuple[int, ...], ...], str]] = {
    "too few heads": ({"input_layout": "BSND"}, ((2, 6, 11, 8),),
                      "FlashAttentionScore: a packed operand of shape (2, 6, 11, 8) does not hold 4 heads of query and "
                      "4 each of key and value"),
    "hidden size": ({}, ((2, 6, 40),), "FlashAttentionScore: a packed operand of shape (2, 6, 40) does not hold 4 "
                    "heads of query and 4 each of key and value"),
    "dimensions": ({}, ((2, 6, 12, 8),), "FlashAttentionScore: a packed operand of shape (2, 6, 12, 8) does not hold "
                   "4 heads of query and 4 each of key and value"),
    "heads": ({"packed": 3}, ((2, 6, 40),), "FlashAttentionScore: the 3 heads of key do not divide the 4 heads of "
              "query"),
    "three operands": ({}, ((2, 6, 48),) * 3, "FlashAttentionScore takes 3 tensors, not 5"),
    "none": ({}, (), "FlashAttentionScore needs a packed operand"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    attributes, shapes, message = MISTAKES[name]
    op = FlashAttentionScore(**{"head_num": 4, "packed": 4, **attributes})
    with pytest.raises(MspcError) as raised:
        op.infer(*[TensorType(FLOAT32, shape) for shape in shapes])
    assert raised.value.message == message


def test_it_is_for_a_ranks_own_graph() -> None:
    type = TensorType(FLOAT32, (2, 6, 48))
    with pytest.raises(MspcError, match="a packed operand is of a rank's own graph: it has no sharding rule"):
        FlashAttentionScore(4, packed=4).rule(type)
    x = np.zeros((2, 6, 16), np.float32)
    with pytest.raises(MspcError, match="FlashAttentionScore: packed is 4; it is for the compiler alone"):
        FlashAttentionScore(4, packed=4).call(x, x, x)


# On a GPU


def empty(op: Op, inputs: list[np.ndarray]) -> Any:
    inferred = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
    if isinstance(inferred, TensorType):
        return np.full(inferred.shape, np.nan, inferred.dtype.numpy)
    assert isinstance(inferred, TupleType)
    return [np.full(t.shape, np.nan).astype(t.dtype.numpy) for t in inferred.elements]


def run_both(device: Any, form: str, layout: str) -> None:
    """Forward and backward launches beside NumPy in Float64."""
    if NEEDED is None:
        pytest.skip("needs g++")
    wide, pair = Pair(form, layout), Pair(form, layout, np.float32)
    wanted = wide.operator(FlashAttentionScore, True).run(BACKEND, *wide.packed)
    grads = wide.operator(FlashAttentionScoreGrad, True).run(BACKEND, *wide.backward(True, wanted))
    operators = [pair.operator(of, True) for of in (FlashAttentionScore, FlashAttentionScoreGrad)]
    known = [np.asarray(x, np.float32) if np.ndim(x) > 1 else x for x in wanted]
    operands = pair.backward(True, known)
    out, gradient = empty(operators[0], pair.packed), empty(operators[1], operands)
    launches = [operators[0].launch(device, pair.packed, out), operators[1].launch(device, operands, gradient)]
    for launch in launches:
        launch()
    for found, value in ((out[0], wanted[0]), (out[3], wanted[3]), (gradient, grads)):
        size = float(np.max(np.abs(value)))
        np.testing.assert_allclose(found, value, rtol=0, atol=2e-5 * max(1.0, size))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_around_a_softmax(layout: str, tmp_path: Path) -> None:
    run_both(Fusing(tmp_path), "fewer heads of key", layout)


def test_products_around_a_softmax_with_addends(tmp_path: Path) -> None:
    run_both(Fusing(tmp_path), "shift and mask", "BSND")


@pytest.mark.parametrize(("form", "layout"), [("plain", "BSND"), ("causal", "BSH"), ("fewer heads of key", "SBH")])
def test_kernels_of_tf32_read_and_write_in_place(form: str, layout: str, tmp_path: Path) -> None:
    device = TensorCores(tmp_path)
    run_both(device, form, layout)
    assert device.launched == ["flash_forward", "flash_backward", "flash_backward"]


def test_the_fused_kernel_gets_parts_of_one_array(tmp_path: Path) -> None:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Fusing(tmp_path, fuses=True)
    pair = Pair("fewer heads of key", "BSND", np.float16)
    forward, backward = (pair.operator(of, True) for of in (FlashAttentionScore, FlashAttentionScoreGrad))
    out = empty(forward, pair.packed)
    known = [x.astype(np.float32) if i == 0 else x for i, x in enumerate(out)]
    operands = pair.backward(True, known)
    gradient = empty(backward, operands)
    for op, inputs, target in ((forward, pair.packed, out), (backward, operands, gradient)):
        assert op.launch(device, inputs, target) is not None
    for asked, array in ((device.fused[0]["operands"][:3], pair.packed[0]),
                         (device.fused[1]["gradients"][1:], gradient)):  # fmt: skip
        begins = [part.ctypes.data - array.ctypes.data for part in asked]
        assert begins == [0, 2 * N * D, 2 * (N + 2) * D]
        assert [part.shape for part in asked] == [(B, n, S, D) for n in (N, 2, 2)]
        assert {part.strides for part in asked} == {(2 * S * (N + 4) * D, 2 * D, 2 * (N + 4) * D, 2)}

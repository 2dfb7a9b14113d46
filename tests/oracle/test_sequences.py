"""Recurrent operators, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, ops
from mspc.ir.diagnostics import MspcError

torch = pytest.importorskip("torch")
F = torch.nn.functional

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(5, 3, 4)).astype(np.float32)


def test_dynamic_rnn_is_an_lstm() -> None:
    """Its gates stand as input, memory, forget, output, those of PyTorch as input, forget, memory, output."""
    lstm = torch.nn.LSTM(4, 2)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    rows = [0, 1, 4, 5, 2, 3, 6, 7]
    enter, own, bias, own_bias = (getattr(lstm, name).detach().numpy()[rows] for name in names)
    weight, state = np.concatenate([enter, own], 1).T.copy(), np.full((1, 3, 2), 0.3, np.float32)
    found = ops.DynamicRNN()(Tensor(X), Tensor(weight), Tensor(bias + own_bias), None, Tensor(state), Tensor(state))
    output, (_, memory) = lstm(torch.tensor(X), (torch.tensor(state), torch.tensor(state)))
    assert [each.shape for each in found] == [(5, 3, 2)] * 8
    np.testing.assert_allclose(found[0].asnumpy(), output.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2].asnumpy()[-1], memory.detach().numpy()[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((found[6] * found[7]).asnumpy(), found[1].asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("order", ["rzh", "zrh"])
def test_dynamic_gru_is_a_gru(order: str) -> None:
    gru = torch.nn.GRU(4, 2)
    rows = [0, 1, 2, 3, 4, 5] if order == "rzh" else [2, 3, 0, 1, 4, 5]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    given = [Tensor(getattr(gru, name).detach().numpy()[rows].T.copy()) for name in names]
    state = np.full((3, 2), 0.3, np.float32)
    found = ops.DynamicGRUV2(gate_order=order)(Tensor(X), *given, None, Tensor(state))
    output, _ = gru(torch.tensor(X), torch.tensor(state[None]))
    np.testing.assert_allclose(found[0].asnumpy(), output.detach().numpy(), rtol=1e-5, atol=1e-6)
    fresh = (1 - found[2]) * found[4] + found[2] * mint.cat((Tensor(state[None]), found[1][:-1]))
    np.testing.assert_allclose(fresh.asnumpy(), found[1].asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.DynamicRNN(cell_depth=2), "DynamicRNN: cell_depth must be 1, not 2"),
    (lambda: ops.DynamicGRUV2(gate_order="zhr"), "DynamicGRUV2: gate_order must be 'rzh' or 'zrh', not 'zhr'"),
    (lambda: ops.DynamicRNN()(*[Tensor(X)] * 6), "DynamicRNN: seq_length must be None"),
])  # fmt: skip
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message

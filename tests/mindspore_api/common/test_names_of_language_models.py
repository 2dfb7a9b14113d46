"""More names of public trainers of language models: tokens brought to experts, checkpoints of other ranks, profilers,
marks of composed operators."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state

TOKENS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
EXPERTS = np.array([[2, 0], [1, 2], [2, 1], [0, 2], [2, 0]], np.int32)
PROBS = np.random.default_rng(1).random((5, 2)).astype(np.float32)


def rows_of(experts: np.ndarray) -> list[tuple[int, int]]:
    """(token, which of its choices) row by row: expert after expert, in the order of tokens and their choices."""
    table = experts.reshape(len(experts), -1)
    choices = [(table[token, choice], token, choice) for token in range(len(table)) for choice in range(table.shape[1])]
    return [(token, choice) for _, token, choice in sorted(choices)]


@pytest.mark.parametrize("left_out", [0, 3])
def test_what_experts_give_is_added_up_for_every_token(left_out: int) -> None:
    _, places = ops.moe_token_permute(Tensor(TOKENS), Tensor(EXPERTS))
    given = np.random.default_rng(2).standard_normal((10 - left_out, 3)).astype(np.float32)
    expected = np.zeros((5, 3), np.float32)
    for row, (token, choice) in enumerate(rows_of(EXPERTS)[: len(given)]):
        expected[token] += given[row] * PROBS[token, choice]
    found = ops.moe_token_unpermute(Tensor(given), places, Tensor(PROBS))
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
    halves = ops.moe_token_unpermute(Tensor(given, ms.bfloat16), places, Tensor(PROBS))
    assert halves.dtype == ms.bfloat16


def test_gradients_of_tokens_and_probabilities() -> None:
    weight = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32)

    def network(tokens: Any, probs: Any) -> Any:
        permuted, places = ops.moe_token_permute(tokens, Tensor(EXPERTS))
        return (ops.moe_token_unpermute(permuted * permuted, places, probs) * Tensor(weight)).sum()

    of_tokens, of_probs = ms.grad(network, (0, 1))(Tensor(TOKENS), Tensor(PROBS))
    # Every choice of a token gives back its square: sum over t, c of probs[t, c] * tokens[t]^2 . weight[t].
    np.testing.assert_allclose(of_tokens.asnumpy(), 2 * TOKENS * weight * PROBS.sum(1)[:, None], rtol=1e-5)
    expected = np.repeat((TOKENS**2 * weight).sum(1)[:, None], 2, 1)
    np.testing.assert_allclose(of_probs.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_marks_of_operators_that_are_several_here(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.array([3, 1, 3], np.int32))
    assert ops.Unique().shard(((1,),))(x)[0].asnumpy().tolist() == [3, 1]
    assert not capsys.readouterr().err
    before = state.swap(state.Session())
    assert ops.Unique().shard(((2,),)).add_prim_attr("kind", 3)(x)[0].asnumpy().tolist() == [3, 1]
    state.swap(before)
    said = capsys.readouterr().err
    assert "Unique.shard() changes nothing here" in said
    assert "Unique.add_prim_attr('kind') changes nothing here" in said
    before = state.swap(state.Session())
    assert ops.Einsum("i,i->").shard(((2,), (2,)))((x, x)).asnumpy() == 19
    state.swap(before)
    assert "Einsum.shard() changes nothing here" in capsys.readouterr().err
    for wrong in (lambda: ops.Unique().shard(3), lambda: ops.Unique().add_prim_attr(3, 4)):
        with pytest.raises(MspcError):
            wrong()


@pytest.mark.parametrize("make", [ops.Dropout, ops.Dropout2D, ops.Dropout3D])
def test_facts_of_dropouts(make: Any) -> None:
    operator = make(keep_prob=0.5).add_prim_attr("recompute_comm_op", True)
    assert operator.attrs["recompute_comm_op"] is True
    extended = importlib.import_module("mspc.ops.auto_generate").DropoutExt()
    assert extended.add_prim_attr("recompute_comm_op", True) is extended


def test_dot_by_its_older_names() -> None:
    x, y = Tensor(TOKENS), Tensor(TOKENS.T.copy())
    for found in (ops.dot(x1=x, x2=y), ops.dot(x, y), ops.dot(input=x, other=y), ops.dot(x, x2=y)):
        np.testing.assert_allclose(found.asnumpy(), TOKENS @ TOKENS.T, rtol=1e-5)
    with pytest.raises(MspcError, match=r"dot\(\)"):
        ops.dot(x1=x)


class Scaled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 4), np.float32)), name="w")
        self.product = ops.MatMul().shard(((2, 1), (1, 4)))

    def construct(self, x: Any, scale: float = 2.0) -> Any:
        return self.product(x, self.w) * scale


def test_a_network_is_compiled_ahead() -> None:
    x = Tensor(np.ones((8, 4), np.float32))
    before = state.swap(state.Session())
    try:
        ms.communication.init()
        plain = Scaled()
        plain.compile(x, scale=3.0)
        assert "parameter_layout_dict" in vars(plain)  # a compile has left it
        ms.set_auto_parallel_context(device_num=8)
        network = ms.parallel.AutoParallel(Scaled(), parallel_mode="semi_auto")
        network.dataset_strategy("full_batch")
        network.compile(x)
        assert network.parameter_layout_dict["w"][0] == [2, 4]
        with pytest.raises(MspcError, match="construct"):
            plain.compile()
        plain.product.shard(((3, 1), (1, 4)))
        with pytest.raises(MspcError):
            ms.parallel.AutoParallel(plain, parallel_mode="semi_auto").compile(x)
    finally:
        state.swap(before)


def test_a_process_for_a_part_is_taken_and_said_to_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for part in (Scaled(), ops.Add(), ops.Unique()):
        before = state.swap(state.Session())
        part.place("MS_WORKER", 0)
        state.swap(before)
        assert "place('MS_WORKER', 0) changes nothing here" in capsys.readouterr().err
        for wrong in ((3, 0), ("MS_WORKER", -1), ("MS_WORKER", "0")):
            with pytest.raises(MspcError, match="place"):
                part.place(*wrong)

"""Attention against PyTorch's with the same weights: values and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch

SRC, TGT = floats(1, 5, 2, 8, dtype=np.float32), floats(2, 4, 2, 8, dtype=np.float32)
CAUSAL = np.triu(np.ones((4, 4), bool), 1)
PADDING = np.array([[False, False, False, True, True], [False] * 5])


def other_name(name: str) -> str:
    """LayerNorm has gamma and beta, the layers between are dense."""
    parts = name.replace("linear", "dense").split(".")
    if "norm" in (parts[-2] if len(parts) > 1 else ""):
        parts[-1] = {"weight": "gamma", "bias": "beta"}[parts[-1]]
    return ".".join(parts)


def held(mine: Any, theirs: Any) -> dict[str, Any]:
    """Parameters of both by the names of mine, with the same values."""
    own = {p.name: p for p in mine.get_parameters()}
    judged = {other_name(name): p for name, p in theirs.named_parameters()}
    assert sorted(own) == sorted(judged)
    generator = np.random.default_rng(7)
    for name, p in judged.items():
        value = generator.uniform(-0.5, 0.5, tuple(p.shape)).astype(np.float32)
        p.data, p.grad = torch.tensor(value), None
        own[name].set_data(Tensor(value))
    return judged


def compare(mine: Any, theirs: Any, arrays: list[np.ndarray], call: Any, judge: Any) -> None:
    """`call` of my cell's and `judge` of PyTorch's results on the same inputs."""
    judged = held(mine, theirs)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = judge(*tensors)
    factor = floats(9, *expected.shape, dtype=np.float32)
    (expected * torch.tensor(factor)).sum().backward()
    weights, weighing = list(mine.trainable_params()), Tensor(factor)

    def total(*inputs: Any) -> Any:
        found = call(*inputs)
        return (found * weighing).sum(), found

    places = tuple(range(len(arrays)))
    (_, found), (inputs, grads) = ms.value_and_grad(total, places, weights, has_aux=True)(*map(Tensor, arrays))
    near(found.asnumpy(), expected.detach().numpy(), "result")
    for i, (gradient, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        wanted = tensor.grad
        near(gradient.asnumpy(), np.zeros(tensor.shape) if wanted is None else wanted.numpy(), f"gradient of input {i}")
    for weight, gradient in zip(weights, grads, strict=True):
        wanted = judged[weight.name].grad
        near(gradient.asnumpy(), np.zeros(weight.shape) if wanted is None else wanted.numpy(), weight.name)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("mask", ["none", "padding", "numbers", "heads"])
def test_attention(mask: str, part: int) -> None:
    mine, theirs = nn.MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2)
    given: dict[str, np.ndarray] = {
        "none": {}, "padding": {"key_padding_mask": PADDING},
        "numbers": {"attn_mask": floats(4, 4, 5, dtype=np.float32)},
        "heads": {"attn_mask": np.random.default_rng(5).random((4, 4, 5)) > 0.8},
    }[mask]  # fmt: skip
    own, other = ({k: make(v) for k, v in given.items()} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [TGT, SRC], lambda q, k: mine(q, k, k * 2.0, **own)[part],
            lambda q, k: theirs(q, k, k * 2.0, **other)[part])  # fmt: skip


def test_attention_over_other_sizes() -> None:
    mine = nn.MultiheadAttention(8, 2, has_bias=False, kdim=3, vdim=5, batch_first=True)
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False, kdim=3, vdim=5, batch_first=True)
    arrays = [floats(i, 2, 4, size, dtype=np.float32) for i, size in enumerate((8, 3, 5))]
    compare(mine, theirs, arrays, lambda q, k, v: mine(q, k, v, need_weights=False)[0],
            lambda q, k, v: theirs(q, k, v, need_weights=False)[0])  # fmt: skip
    compare(mine, theirs, arrays, lambda q, k, v: mine(q, k, v, average_attn_weights=False)[1],
            lambda q, k, v: theirs(q, k, v, average_attn_weights=False)[1])  # fmt: skip


@pytest.mark.parametrize("mask", ["padding", "numbers"])
def test_keys_and_values_that_the_layer_adds(mask: str) -> None:
    options: dict[str, Any] = {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}
    mine, theirs = nn.MultiheadAttention(8, 2, **options), torch.nn.MultiheadAttention(8, 2, **options)
    query, key = np.swapaxes(TGT, 0, 1), np.swapaxes(SRC, 0, 1)
    kinds = {"padding": {"key_padding_mask": PADDING}, "numbers": {"attn_mask": floats(4, 4, 5, dtype=np.float32)}}
    given = kinds[mask]
    own, other = ({k: make(v) for k, v in given.items()} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [query, key], lambda q, k: mine(q, k, k, **own)[0],
            lambda q, k: theirs(q, k, k, **other)[0])  # fmt: skip


@pytest.mark.parametrize("part", [0, 1])
def test_attention_without_a_batch(part: int) -> None:
    mine, theirs = nn.MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2)
    heads = np.random.default_rng(5).random((2, 4, 5)) > 0.8
    own, other = ({"key_padding_mask": make(PADDING[0]), "attn_mask": make(heads)} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [TGT[:, 0], SRC[:, 0]], lambda q, k: mine(q, k, k, **own)[part],
            lambda q, k: theirs(q, k, k, **other)[part])  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MultiheadAttention(8, 3), "MultiheadAttention: num_heads 3 does not divide embed_dim 8"),
        (lambda: nn.MultiheadAttention(8, 2, add_zero_attn=1),
         "MultiheadAttention: add_zero_attn must be True or False, not 1"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert raised.value.message == message

"""What serving networks keep of sequences, and the way of rows to experts: against plain loops, and on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, ops
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from tests.compiler.test_operator_strategies import HEAD, compiled

RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def tensors(*arrays: Any) -> list[Any]:
    return [None if array is None else Tensor(array) for array in arrays]


@pytest.mark.parametrize("masked", [False, True])
def test_a_query_looks_at_the_places_of_its_blocks(masked: bool) -> None:
    query, keys, values = numbers(2, 1, 12), numbers(6, 2, 2, 3), numbers(6, 2, 2, 3)
    tables, lengths = np.array([[4, 1, 0], [2, 5, 3]], np.int32), np.array([3, 6], np.int32)
    mask = numbers(2, 4, 1, 6) if masked else None
    op = (ops.PagedAttentionMask if masked else ops.PagedAttention)(4, 0.5, 2)
    more = [None, None, mask] if masked else []
    operands = (query, keys, values, tables, lengths)
    found = op(*tensors(*operands, *more)).asnumpy()
    if masked:  # as MindSpore's example calls it
        assert (op(*tensors(*operands, mask)).asnumpy() == found).all()
    for row in range(2):
        key = np.concatenate([keys[block] for block in tables[row]])[: lengths[row]]
        value = np.concatenate([values[block] for block in tables[row]])[: lengths[row]]
        for head in range(4):
            scores = key[:, head // 2] @ query[row, 0, 3 * head : 3 * head + 3] * 0.5
            scores = scores + (0 if mask is None else mask[row, head, 0, : lengths[row]])
            weights = np.exp(scores) / np.exp(scores).sum()
            expected = weights @ value[:, head // 2]
            np.testing.assert_allclose(found[row, 0, 3 * head : 3 * head + 3], expected, rtol=1e-5)


def test_rows_are_written_to_their_slots() -> None:
    key, value, keys, values = numbers(2, 2, 4), numbers(2, 2, 4), numbers(3, 2, 2, 2), numbers(3, 2, 2, 2)
    slots = np.array([5, 0, -1, 2], np.int32)
    held = [Parameter(Tensor(cache), name) for cache, name in ((keys, "keys"), (values, "values"))]
    found = ops.ReshapeAndCache()(Tensor(key), Tensor(value), *held, Tensor(slots))
    assert (found.asnumpy() == key).all()
    for rows, cache, parameter in ((key, keys, held[0]), (value, values, held[1])):
        expected = cache.reshape(6, 2, 2).copy()
        for number, slot in enumerate(slots):
            if slot >= 0:
                expected[slot] = rows.reshape(4, 2, 2)[number]
        assert (parameter.asnumpy() == expected.reshape(cache.shape)).all()


def test_new_keys_stand_behind_the_old_ones() -> None:
    kept, new = numbers(2, 3, 6, 2), numbers(2, 3, 2, 2)
    parameter = Parameter(Tensor(kept), "kept")
    ops.KVCacheScatterUpdate()(parameter, Tensor(np.array([4, 1])), Tensor(new), -2, "update")
    expected = kept.copy()
    expected[0, :, 4:6], expected[1, :, 1:3] = new[0], new[1]
    assert (parameter.asnumpy() == expected).all()


def test_rows_find_their_experts_and_come_back() -> None:
    x, scores = numbers(5, 3), numbers(5, 4)
    weights, experts, rows = ops.MoeGatingTopKSoftmax()(Tensor(scores), None, 2)
    share = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    best = np.argsort(-share, axis=-1)[:, :2]
    assert (experts.asnumpy() == best).all()
    np.testing.assert_allclose(weights.asnumpy(), np.take_along_axis(share, best, -1), rtol=1e-6)
    expanded, places, sorted_experts = ops.MoeInitRouting()(Tensor(x), rows, experts, 5)
    order = sorted(range(10), key=lambda at: best.reshape(-1)[at])
    assert (sorted_experts.asnumpy() == np.sort(best.reshape(-1))).all()
    assert (expanded.asnumpy() == x[[at // 2 for at in order]]).all()
    counts = ops.MoeComputeExpertTokens()(sorted_experts, 4).asnumpy()
    assert (counts == [(best <= expert).sum() for expert in range(4)]).all()
    first, bias = numbers(5, 3), numbers(4, 3)
    back = ops.MoeFinalizeRouting()(
        expanded, Tensor(first), None, Tensor(bias), weights, places, experts
    ).asnumpy()
    chosen = np.take_along_axis(share, best, -1)
    expected = first + sum(chosen[:, j, None] * (x + bias[best[:, j]]) for j in range(2))
    np.testing.assert_allclose(back, expected, rtol=1e-5, atol=1e-6)


def test_a_finished_row_names_no_expert() -> None:
    _, experts, _ = ops.MoeGatingTopKSoftmax()(Tensor(numbers(2, 4)), Tensor(np.array([False, True])), 2)
    assert experts.asnumpy()[1].tolist() == [4, 4]


def test_a_rotated_row_is_that_of_the_other_operator() -> None:
    x, cos, sin = numbers(2, 5, 3, 4), numbers(2, 5, 1, 4), numbers(2, 5, 1, 4)
    found = ops.RotaryPositionEmbedding()(*tensors(x, cos, sin)).asnumpy()
    other, _ = ops.ApplyRotaryPosEmb()(*tensors(x, x, cos, sin, np.zeros(2, np.int32)))
    assert (found == other.asnumpy()).all()


NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.keys, self.values = (Parameter(tensor(6, 2, 4, 2), name) for name in ("keys", "values"))
        self.write = P.ReshapeAndCache().shard(((1, 1, {heads}), (1, 1, {heads}), (1, 1, {heads}, 1), (1, 1, {heads}, 1), (1,)))
        self.read = {made}
        self.tables, self.slots = Tensor([[4, 1], [2, 5]], ms.int32), Tensor([8, 5], ms.int32)
    def construct(self, x):
        key = self.write(x, x * 2, self.keys, self.values, self.slots)
        return self.read(key, self.keys, self.values, self.tables, Tensor([3, 4], ms.int32))
Net()(tensor(2, 1, 8))
"""  # noqa: E501
PAGED = "P.PagedAttention(4, 0.5, 4).shard(((2, 1, 4), (1, 1, 4, 1), (1, 1, 4, 1), (2, 1), (2,)))"


def test_heads_on_ranks_equal_one_device(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(HEAD + NETWORK.format(heads=4, made=PAGED))
    verify_target(str(script), CompileOptions(), seed=1)


REFUSED = {
    "P.PagedAttention(4, 0.5, 3)": "4 heads of query and 3 of the caches do not fit (2, 1, 8) and (6, 2, 4, 2)",
    "P.PagedAttention(4, 0.5, 4, mla_v_dim=3)": "mask_mode 'MASK_DEFAULT' and mla_v_dim 3 are not built",
    "P.PagedAttention(4, 0.5, 4, 'INT8')": "kv_cache_quant_mode must be 'DEFAULT', not 'INT8'",
    PAGED.replace("(2, 1, 4)", "(2, 1, 2)", 1): "is sharded into 4 slices",
}


@pytest.mark.parametrize(("made", "message"), REFUSED.items())
def test_what_does_not_fit_is_refused(made: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(MspcError) as caught:
        compiled(tmp_path, NETWORK.format(heads=4, made=made))
    assert message in str(caught.value)

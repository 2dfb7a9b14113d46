"""Attention and its gradients over slices of both sequences equal those over whole ones, on simulated ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest

from mspc.ir.graph import element_types
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.op import Op
from mspc.passes.lib.choices import make_choice
from tests.ops.ranks import on_ranks
from tests.ops.simulate import results_of
from tests.shares import is_taken

LAYOUTS = ("BSH", "SBH", "BNSD", "BSND")
BATCH, HEADS, DEPTH = 2, 4, 3


@dataclass(frozen=True)
class Case:
    """An attention. keys: for every 4 queries of a rank. optional: shapes of masks, of 4 places a rank, by name; of
    "ends" shares of all places."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    key_heads: int = HEADS
    keys: int = 4
    optional: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


CASES = {
    "all keys": Case(),
    "causal": Case({"sparse_mode": 2}),
    "causal, an odd number of keys": Case({"sparse_mode": 2}, keys=3),
    "causal from the ends": Case({"sparse_mode": 3}, keys=6),
    "a band": Case({"sparse_mode": 4, "pre_tokens": 5, "next_tokens": 2}),
    "keys behind alone": Case({"sparse_mode": 4, "pre_tokens": -3, "next_tokens": 9}),
    "shared heads of keys": Case({"sparse_mode": 2}, key_heads=2),
    "one head of keys": Case({"sparse_mode": 2}, key_heads=1),
    "drawn": Case({"sparse_mode": 2, "keep_prob": 0.6, "Seed0": 3, "Seed1": 4}),
    "a mask of keys": Case({"sparse_mode": 1}, optional={"attn_mask": (BATCH, 1, 1, "keys")}),
    "a mask for every query": Case({"sparse_mode": 1}, optional={"attn_mask": (1, HEADS, "queries", "keys")}),
    "a mask of queries": Case({"sparse_mode": 1}, optional={"attn_mask": (BATCH, 1, "queries", 1)}),
    "dropped by a mask": Case({"sparse_mode": 2, "keep_prob": 0.7}, optional={"drop_mask": ("queries", "keys")}),
    "documents": Case(
        {"sparse_mode": 2}, optional={"actual_seq_qlen": (0.3, 0.4, 0.9), "actual_seq_kvlen": (0.2, 0.6, 1)}
    ),
}  # fmt: skip


def operands(case: Case, layout: str, ranks: int) -> list[Any]:
    random = np.random.default_rng(ranks)
    lengths = {"queries": 4 * ranks, "keys": case.keys * ranks}

    def drawn(heads: int, length: int) -> Any:
        shape = {"BSH": (BATCH, length, heads * DEPTH), "SBH": (length, BATCH, heads * DEPTH),
                 "BNSD": (BATCH, heads, length, DEPTH), "BSND": (BATCH, length, heads, DEPTH)}[layout]  # fmt: skip
        return random.normal(size=shape)

    found = [drawn(HEADS, lengths["queries"])] + [drawn(case.key_heads, lengths["keys"]) for _ in range(2)]
    for name, sizes in case.optional.items():
        if name.startswith("actual"):
            all_places = lengths["queries" if name.endswith("qlen") else "keys"]
            found.append(np.array([int(share * all_places) for share in sizes]))
        else:
            found.append(random.random([lengths.get(n, n) for n in sizes]) < 0.6)
    return found


def check(op: Op, inputs: list[Any], ranks: int) -> tuple[Any, ...]:
    """The results of an operator on one rank, which its slices on several ranks equal."""
    types = [TensorType(dtype_of(x.dtype), x.shape) for x in inputs]
    rule = op.parsed_rule(*types)
    choice = make_choice(rule, (ranks,), [(0,) if name == "c" else () for name in rule.names])
    alone = results_of(op, inputs)
    made = element_types(op.infer(*types))
    for rank, (results, _, _) in enumerate(on_ranks(op, ranks, types, choice.inputs, made, choice.outputs, inputs)):
        for wanted, found, layout in zip(alone, results, choice.outputs, strict=True):
            np.testing.assert_allclose(found, wanted[layout.slices_for(rank, wanted.shape)], rtol=1e-11, atol=1e-12)
    return alone


@pytest.mark.parametrize(
    ("name", "ranks"), [each for place, each in enumerate(product(CASES, (2, 3, 4, 8))) if is_taken(place, 5)]
)
def test_slices_equal_the_whole(name: str, ranks: int) -> None:
    case = CASES[name]
    for layout in LAYOUTS:
        given = {"scale_value": 0.5, "input_layout": layout, "context": ranks, "optional": tuple(case.optional)}
        settings = {**given, **case.attributes}
        inputs = operands(case, layout, ranks)
        statistics, _, _, out = check(FlashAttentionScore(HEADS, **settings), inputs, ranks)
        dout = np.random.default_rng(5).normal(size=out.shape)
        gradient = FlashAttentionScoreGrad(HEADS, **settings)
        check(gradient, [*inputs[:3], dout, *inputs[3:], statistics, out], ranks)

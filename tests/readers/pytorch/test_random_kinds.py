"""Kinds that draw numbers: PyTorch's are others, so their properties are tested.

Medians of all elements: which of them have its gradient, also beside infinite ones.
Kinds of ranks: programs that differ in groups and offsets alone are derived from a few that were traced.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import coordinates
from mspc.readers.pytorch.captured_kinds import RANKS, differences, find_kinds, read_kinds, with_slices, write_kinds
from mspc.readers.pytorch.kinds.creation import dropped_channels
from mspc.readers.pytorch.kinds.linear import attention
from mspc.readers.pytorch.kinds.reductions import median_of_all


@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 6), (8, 16, 3, 2), (4, 16, 2, 2, 2)])
def test_channels_are_dropped_as_a_whole(shape: tuple[int, ...]) -> None:
    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        y = dropped_channels(x, 0.25, True)
        return y.sum(), y

    x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    (_, y), gradient = mspc.value_and_grad(total, has_aux=True)(Tensor(x))
    channels = (y.asnumpy() / x).reshape(*shape[:2], -1)
    np.testing.assert_allclose(channels, np.broadcast_to(channels[:, :, :1], channels.shape), rtol=1e-5)
    counts = np.isclose(channels[:, :, 0], 4 / 3)
    assert (counts | (channels[:, :, 0] == 0)).all()
    assert 0.5 < counts.mean() < 0.95  # 0.75 of 64 channels or more
    np.testing.assert_allclose(gradient.asnumpy(), np.where(y.asnumpy() != 0, 4 / 3, 0), rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_bool", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_query_that_sees_nothing_gives_zeros(is_bool: bool, is_causal: bool, dropout: float) -> None:
    """Also if the mask and the causal one hide its keys together."""
    rng = np.random.default_rng(0)
    query, key, value = (Tensor(rng.standard_normal((2, 2, 4, 8)).astype(np.float32)) for _ in range(3))
    seen = rng.random((2, 1, 4, 4)) > 0.4
    seen[0, 0, 1] = seen[1, 0, :2] = False
    seen[1, 0, 3] = [True, False, False, False]
    seen[1, 0, 2] = [False, False, False, True]
    mask = Tensor(seen if is_bool else np.where(seen, 0, -np.inf).astype(np.float32))

    def total(*operands: Tensor) -> tuple[Tensor, Tensor]:
        y = attention(*operands, mask, dropout, is_causal, None, False)
        return (y * y).sum(), y

    (_, y), gradients = mspc.value_and_grad(total, (0, 1, 2), has_aux=True)(query, key, value)
    seen &= np.tri(4, dtype=bool) | (not is_causal)
    hidden = np.broadcast_to(~seen.any(-1), (2, 2, 4))
    assert hidden[1, 0].tolist() == [True, True, is_causal, False]
    assert (y.asnumpy()[hidden] == 0).all()
    assert (y.asnumpy()[~hidden] != 0).any()
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in gradients)
    assert (gradients[0].asnumpy()[hidden] == 0).all()


@pytest.mark.parametrize(
    ("given", "median", "shares"),
    [([1, 2, 2, 4], 2, [0, 0.5, 0.5, 0]), ([np.inf, 1, 2], 2, [0, 0, 1]), ([-np.inf, -np.inf, 2], -np.inf, None)],
)
def test_what_is_as_large_shares_the_gradient(given: list[float], median: float, shares: list[float] | None) -> None:
    value, gradient = mspc.value_and_grad(median_of_all)(Tensor(np.array(given, np.float32)))
    assert float(value) == median
    assert shares is None or gradient.asnumpy().tolist() == shares


MESH = (4, 2, 3)


def program(rank: int, sizes: int = 4, **given: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "groups": {"group 0": {"ranks": [rank - coordinates(MESH, rank)[2] + each for each in range(3)]}},
        "inputs": [{"name": "w", "mesh": [rank % 6, rank % 6 + 6]}],
        "nodes": [["aten.add.Tensor", {"self": {"tensor": "v1"}, **given}, 0, [["v2", "float32", [sizes]]], 0]],
    }


def traced(make: Callable[[int], Any]) -> tuple[list[Any], set[int]]:
    asked = set[int]()

    def trace(ranks: Sequence[int]) -> list[Any]:
        asked.update(ranks)
        return [make(rank) for rank in ranks]

    return find_kinds(trace, MESH), asked


def same(make: Callable[[int], Any]) -> tuple[int, int]:
    """Return the number of kinds and of traced ranks, after a comparison of every rank's program with the derived."""
    kinds, asked = traced(make)
    assert sorted(rank for kind in kinds for rank in kind.ranks) == list(range(24))
    for kind in kinds:
        for rank in kind.ranks:
            assert kind.program_of(rank, make(kind.traced)) == make(rank)
    return len(kinds), len(asked)


def test_groups_and_offsets_are_derived() -> None:
    assert same(lambda rank: program(rank, start=5 * rank, end=[0, 7 - rank])) == (1, 6)


def test_an_axis_with_other_programs_is_divided() -> None:
    stages = ("first", "inner", "inner", "last")
    assert same(lambda rank: program(rank, stage=stages[rank // 6])) == (4, 14)
    uneven = (2, 2, 1, 0)
    assert same(lambda rank: program(rank, sizes=uneven[rank // 6]))[0] == 4  # ranks of a kind have equal sizes


def split_of(*read: int) -> dict[str, Any]:
    """A tensor that is split into three, of which some parts are read."""
    parts = [[f"v{part}", "float32", [4, 2]] for part in range(1, 4)]
    joined = {"tensors": [{"tensor": f"v{part}"} for part in read]}
    sums = ["aten.cat.default", joined, 0, [["v4", "float32", [4, 2 * len(read)]]], 0]
    split = ["aten.split.Tensor", {"self": {"tensor": "v0"}, "split_size": 2, "dim": 1}, 0, parts, 0]
    return {"nodes": [split, sums], "outputs": [["loss", "", f"v{read[0]}"]]}


def test_the_own_part_of_a_split_is_a_slice() -> None:
    first, second = with_slices(split_of(1)), with_slices(split_of(2))
    assert second["nodes"][0][:2] == ["aten.slice.Tensor", {"self": {"tensor": "v0"}, "dim": 1, "start": 2, "end": 4}]
    assert dict(differences(first, second)) == {("nodes", 0, 1, "start"): 2, ("nodes", 0, 1, "end"): 2}
    assert with_slices(split_of(1, 3)) == split_of(1, 3)


@pytest.mark.parametrize("value", [lambda rank: (rank + 1) % 24, lambda rank: rank * rank, lambda rank: rank // 9])
def test_numbers_that_are_not_linear_are_not_derived(value: Callable[[int], Any]) -> None:
    kinds, asked = traced(lambda rank: program(rank, value=value(rank)))
    assert len(asked) > 6
    assert len(kinds) > 1


def test_the_list_of_kinds_is_read_as_it_was_written(tmp_path: Path) -> None:
    kinds, _ = traced(lambda rank: program(rank, start=5 * rank))
    write_kinds(tmp_path / RANKS, kinds)
    assert read_kinds(tmp_path) == kinds
    content = json.loads((tmp_path / RANKS).read_text())
    for change, said in (
        ({"ranks": list(range(23))}, "do not have every rank once"),
        ({"traced": 99}, "does not fit its mesh"),
        ({"mesh": [4, 2]}, "does not fit its mesh"),
        ({"mesh": [4, 2, 5]}, "do not have every rank once"),
        ({"slopes": [[[[["rank"]], 1]], [], []]}, "is no place"),
        ({"slopes": [[[["rank"], "1"]], [], []]}, "not a whole number"),
    ):
        edited = {"kinds": [{**content["kinds"][0], **change}]}
        (tmp_path / RANKS).write_text(json.dumps(edited))
        with pytest.raises(MspcError, match=said):
            read_kinds(tmp_path)


def test_a_change_of_what_is_no_number_is_refused() -> None:
    kinds, _ = traced(lambda rank: program(rank, start=rank))
    content = program(0, start="0")
    with pytest.raises(ValueError, match="changes 'start', which is '0', not a whole number"):
        kinds[0].program_of(5, content)

"""CUDA kernels over the rows that integers name, at sizes that take the ways of large graphs: run by g++."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT32, FLOAT64, TensorType, dtype_of
from mspc.ops.cuda import rows_by_number
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.cuda.rows_by_number import NamedRows
from mspc.ops.fused.edges import EdgeProducts, EdgeSums, OrderRows
from tests.ops.cuda.cuda_cases import TOLERANCE
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, aligned, placed

needs_compiler = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
SIZES = ((3, 4097), (70, 9000), (511, 5000), (512, 5000), (40000, 9000), (2**31 - 3, 4096), (300, 0), (300, 1), (1, 90))
"""(places, names): one, two and four digits."""


def ids_of(size: int, count: int, skewed: bool, dtype: Any, seed: int = 0) -> Any:
    """Ids of which some are outside of [0, size) or count from the end; if skewed, few places have most."""
    random = np.random.default_rng((size, count, seed))
    found = (size * random.random(count) ** (9 if skewed else 1)).astype(dtype)
    found[random.random(count) < 0.1] -= dtype(size)
    found[random.random(count) < 0.05] = -size - 1
    return found


@needs_compiler
def test_names_are_sorted_by_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_number, "_MAX_COUNTED", 0)
    device: Any = Emulator(tmp_path)
    made: list[tuple[Any, ...]] = []
    for number, (size, count) in enumerate(SIZES):
        groups: list[NamedRows] = []
        expected: list[Any] = []
        for skewed in (False, True):
            ids = placed(ids_of(size, 2 * count, skewed, (np.int32, np.int64)[number % 2]).reshape(2, count))
            lookup = RowLookup(2, 1, size, 1, count, 0, size)
            groups.append(NamedRows(lookup, ids, ids, ids))
            ids = ids.astype(np.int64)
            places = np.where(ids < 0, ids + size, ids)
            places[(places < 0) | (places >= size)] = 0x7FFFFFFE
            expected.append(np.sort(places << 32 | np.arange(count), axis=1))
        names = np.zeros((2, 2, count), np.uint64)
        memory = aligned(rows_by_number.sort_bytes(4, count))
        table = rows_by_number.table_of(device, groups, [0, 0], [0, 0])
        launch = rows_by_number.sorting(device, groups, table, memory, names)
        made.append((names, np.array(expected), launch, groups))  # the table has only addresses
    for names, wanted, launch, _ in made:
        launch()
        np.testing.assert_array_equal(names, wanted.astype(np.uint64))


EDGES = (
    # nodes that edges leave and enter, edges, elements of a row, weights of an edge, types of rows, weights and results
    (40, 30, 900, (24,), 1, BFLOAT16, FLOAT32, FLOAT32),
    (40, 30, 900, (4, 12), 4, FLOAT32, FLOAT32, FLOAT32),
    (40, 3, 3000, (64,), 1, FLOAT32, BFLOAT16, BFLOAT16),
    (90, 700, 300, (7,), 7, FLOAT64, FLOAT64, FLOAT64),
    (90, 70, 1, (8,), 0, BFLOAT16, FLOAT32, BFLOAT16),
    (90, 70, 0, (8,), 1, FLOAT32, FLOAT32, FLOAT32),
    (40, 600, 5000, (64,), 1, FLOAT32, FLOAT32, FLOAT32),  # enough threads without sharing
)


@needs_compiler
@pytest.mark.parametrize("skewed", [False, True])
def test_sums_and_products_over_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skewed: bool) -> None:
    """Their sources count from the end or are of another slice of the table; places of no row are left out."""
    device: Any = Emulator(tmp_path)
    random = np.random.default_rng(1)
    checks: list[tuple[Any, Any, Any]] = []
    for number, (sources, targets, count, shape, heads, of_rows, of_weights, of_result) in enumerate(EDGES):
        monkeypatch.setattr(rows_by_number, "_MAX_COUNTED", (0, 1 << 15)[number % 2])
        ids = placed(ids_of(targets, count, skewed, np.int32))
        left = placed(random.integers(-3 * sources, 3 * sources, count).astype(np.int64))
        table, other = (placed(random.standard_normal((n, *shape)).astype(of_rows.numpy)) for n in (sources, targets))
        weights = [placed(random.standard_normal((count, heads)).astype(of_weights.numpy))] if heads else []
        order = OrderRows(targets)
        edges = EdgeSums((targets, *shape), of_result, weighted=bool(heads), offset=sources, total=3 * sources)
        combine = ("maximum", "minimum", "add")[number % 3]
        plain = EdgeSums((targets, *shape), None, looks_up=False, weighted=bool(heads), combine=combine)
        products = EdgeProducts((count, max(1, heads)), of_result, ((sources, 3 * sources), (0, 0)))
        rows = placed(random.standard_normal((count, *shape)).astype(of_rows.numpy))
        names, begins = placed(np.zeros(count, np.uint64)), placed(np.zeros(targets + 1, np.int32))
        ordered = (names, begins)
        cases: list[tuple[Any, Any, tuple[Any, ...]]] = [(order, ordered, (ids,))]
        for op, inputs in (
            (edges, (table, *ordered, left, *weights)), (plain, (rows, *ordered, *weights)),
            (products, (table, left, other, ids)), (products, (table, left, other, ids, names)),
        ):  # fmt: skip
            type = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
            cases.append((op, placed(np.full(type.shape, 7).astype(type.dtype.numpy)), inputs))
        for op, out, inputs in cases:
            checks.append((op, out, (inputs, op.launch(device, out, *inputs))))
    for op, out, (inputs, launch) in checks:
        if launch is not None:
            launch()
        wide = [x.astype(np.float64) if dtype_of(x.dtype).is_float else x for x in inputs]
        expected = replace(op, dst_type=None).compute(np, *wide) if hasattr(op, "dst_type") else op.compute(np, *wide)
        for made, wanted in zip(each_of(out), each_of(expected), strict=True):
            largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1))
            bound = TOLERANCE.get(dtype_of(made.dtype).name, 0) * largest
            np.testing.assert_allclose(made.astype(np.float64), wanted.astype(np.float64), bound, bound, True, str(op))


def each_of(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)

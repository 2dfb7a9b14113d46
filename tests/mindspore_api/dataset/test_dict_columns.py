"""Columns of dicts, as a function of a batch or a generator gives them, reach the reader as dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mspc import Tensor
from mspc import dataset as ds
from mspc.ir.diagnostics import MspcError


def numbers() -> Iterator[np.ndarray]:
    for i in range(4):
        yield np.array(i)


def split(column: list[np.ndarray], info: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"c": np.stack(column), "i": [info.get_batch_num()]}, {"k": {"inner": column[0]}}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_of_a_batch_returns_dicts(workers: int) -> None:
    data = ds.GeneratorDataset(numbers, ["c"]).batch(
        2, per_batch_map=split, output_columns=["a", "b"], num_parallel_workers=workers
    )
    rows = list(data.create_dict_iterator(num_epochs=1, output_numpy=True))
    assert [row["a"]["c"].tolist() for row in rows] == [[0, 1], [2, 3]]
    assert [row["a"]["i"].tolist() for row in rows] == [[0], [1]]
    assert [int(row["b"]["k"]["inner"]) for row in rows] == [0, 2]
    first = next(data.create_tuple_iterator(num_epochs=1))
    assert isinstance(first[0]["c"], Tensor)
    assert first[0]["c"].asnumpy().tolist() == [0, 1]
    doubled = data.map(lambda row: {"c": row["c"] * 2}, ["a"])
    rows = doubled.create_dict_iterator(num_epochs=1, output_numpy=True)
    assert [row["a"]["c"].tolist() for row in rows] == [[0, 2], [4, 6]]


def test_rows_of_dicts_have_no_batch() -> None:
    def rows() -> Iterator[tuple[dict[str, Any]]]:
        for i in range(2):
            yield ({"a": i, "s": "text"},)

    data = ds.GeneratorDataset(rows, ["c"])
    assert [str(row["c"]["s"]) for row in data.create_dict_iterator(num_epochs=1, output_numpy=True)] == ["text"] * 2
    with pytest.raises(MspcError, match="rows of column 'c' are dicts; a per_batch_map says how they are joined"):
        next(data.batch(2).create_tuple_iterator())
    joined = data.batch(2, per_batch_map=lambda column, info: ([row["a"] for row in column],))
    assert [row[0].tolist() for row in joined.create_tuple_iterator(num_epochs=1, output_numpy=True)] == [[0, 1]]
    with pytest.raises(MspcError, match="a column must hold numbers or arrays, not object"):
        next(ds.GeneratorDataset(lambda: iter([({"a": object()},)]), ["c"]).create_tuple_iterator())

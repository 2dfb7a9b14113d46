"""Sizes of DLRM (Naumov et al. 2019): tables of categories, a tower of dense numbers, products of every two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.networks.start import Optimizer, drawn


@dataclass(frozen=True)
class Sizes:
    dense: int
    tables: int
    rows: int
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int


GPU = Sizes(dense=13, tables=26, rows=40000, width=128, bottom=(512, 256), top=(1024, 1024, 512, 256), batch=8192)
CPU = Sizes(dense=13, tables=8, rows=8000, width=64, bottom=(256, 128), top=(256, 256, 128), batch=1024)
"""`rows` of every table; `bottom` and `top` are the widths between a tower's first and last."""
OPTIMIZER = Optimizer("sgd", 0.1)


def data(sizes: Sizes) -> tuple[Any, ...]:
    """Float32 [batch, dense]; rows of tables, int32 [batch, tables], low ones more often; clicks, Float32 [batch]."""
    draw = drawn()
    numbers = draw.standard_normal((sizes.batch, sizes.dense), np.float32)
    rows = (sizes.rows * draw.random((sizes.batch, sizes.tables)) ** 3).astype(np.int32)
    return numbers, rows, draw.integers(0, 2, sizes.batch).astype(np.float32)

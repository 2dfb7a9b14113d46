"""How much of a GPU's multiprocessors a product fills: a part of a product fills them less than all of it does.

Libraries compute blocks of a result, one on each multiprocessor at a time, and the last round may have few of them
(NVIDIA, "Matrix Multiplication Background User's Guide", on wave quantization). They choose among sizes of blocks. On
an H100 halves, quarters and eighths of the rows or columns of six products of 0.2 to 0.7 ms took what this says and a
launch of 4 us each, within a fifth, and on average within 7 %.
"""

from __future__ import annotations

import functools

from mspc.analysis.cost.kinds import Product

MULTIPROCESSORS = 132
"""Of an H100 or H200."""
TAKEN = 8
"""Of them a collective has beside a product."""
BLOCKS = ((128, 256, 1.0), (256, 128, 1.0), (128, 192, 0.97), (192, 128, 0.97), (128, 128, 0.9))
"""Rows and columns of blocks, and how quick they are beside the quickest."""


def filled(product: Product, beside: bool = False) -> float:
    """The part of a GPU that a product makes use of. beside: while a collective is under way."""
    return _filled(product.batch, product.rows, product.columns, MULTIPROCESSORS - TAKEN * beside)


@functools.lru_cache(maxsize=1024)
def _filled(batch: int, rows: int, columns: int, processors: int) -> float:
    most = 0.0
    for high, wide, quick in BLOCKS:
        rounds = -(-batch * -(-rows // high) * -(-columns // wide) // processors)
        useful = quick * batch * rows * columns / (high * wide)
        most = max(most, useful / (rounds * MULTIPROCESSORS))
    return most

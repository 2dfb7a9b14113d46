"""Networks that other libraries have exported, as cells of a script."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspc.api.call_handler import backend
from mspc.api.errors import ApiTypeError

if TYPE_CHECKING:
    from mspc.api.nn.cell import Cell


def load_torch(
    file_name: str | os.PathLike[str], returns: str | None = None, sizes: Any = None, precision: str = ""
) -> Cell:
    """The network that `torch.export.save` has written, as a cell; PyTorch is not needed.

    Its parameters have the module's names and are read when a run needs them. It is called, wrapped and trained as any
    cell; arguments may be given by the names of `forward`.

    Args:
        file_name: the exported program, `model.pt2`.
        returns: which result of `forward` the cell gives, by its name or path there (`loss`, `0`); None for all.
        sizes: numbers of sizes that were left open, by dimension or symbol: `{"x.0": 64}`. Others are the example's.
        precision: "bfloat16" or "float16", in which it computes as under `torch.autocast`; "" for none.

    Raises:
        MspcError: the file cannot be read, has operators that are not known, which are all named, or there is no such
            precision.
        TypeError: file_name is no path, or sizes are no dictionary of integers.
    """
    if not isinstance(file_name, (str, os.PathLike)):
        raise ApiTypeError(f"load_torch takes the path of an exported program, not {type(file_name).__name__}")
    if sizes is not None and not (
        isinstance(sizes, Mapping) and all(isinstance(n, int) and not isinstance(n, bool) for n in sizes.values())
    ):
        raise ApiTypeError(f"load_torch: sizes must be a dictionary of integers, not {sizes!r:.60}")
    return backend().exported_network(Path(file_name), returns, sizes or {}, precision)

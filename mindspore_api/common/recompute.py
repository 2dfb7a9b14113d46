"""`recompute(block, x)` calls a cell whose values are computed again for its gradient. It is compiled as a function of
a script is."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.common.api import prepare


def recompute(
    block: Any, *args: Any, use_reentrant: bool = True, output_recompute: bool = False, early_stop: bool = True,
    context_fn: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """`block(*args, **kwargs)` of a cell, whose values are not saved for the gradient but computed again.

    use_reentrant, output_recompute, early_stop and context_fn say in MindSpore how hooks do that; here the graph does.
    Raises TypeError if `block` is no Cell.
    """
    prepare(block, output_recompute, context_fn)
    return block(*args, **kwargs)

"""`recompute(block, x)`: a call of a cell with its values recomputed for the gradient. It is compiled like a function
of a script."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api.common.api import prepare


def recompute(
    block: Any, *args: Any, use_reentrant: bool = True, output_recompute: bool = False, early_stop: bool = True,
    context_fn: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Return `block(*args, **kwargs)` of a cell; its values are not saved for the gradient but recomputed.

    use_reentrant, output_recompute, early_stop and context_fn control MindSpore's hooks; here the graph decides. Raises
    TypeError if `block` is no Cell.
    """
    prepare(block, output_recompute, context_fn)
    return block(*args, **kwargs)

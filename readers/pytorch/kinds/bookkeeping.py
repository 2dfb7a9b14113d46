"""Kinds that compute nothing: other names and element types of tensors, and what export notes beside them."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.readers.pytorch.kinds.kind import row


def same(self: Any) -> Any:
    """The tensor itself."""
    return self


def same_back(base: Any, new: Any, *others: Any) -> Any:
    """What was written into the tensor under its other name."""
    return new


def cast(self: Any, dtype: Any) -> Any:
    """The tensor in another element type, where one is given."""
    return self if dtype is None else ops.cast(self, dtype)


def cast_back(base: Any, new: Any, *others: Any) -> Any:
    """What was written into a tensor under its name in another element type, which changes only if it is none."""
    return new if new.dtype == base.dtype else base


def nothing(*given: Any) -> Any:
    """Checks that the exporter has made are not made again."""
    return None


_TO = "-non_blocking=False, -copy=False, -memory_format=None"

BOOKKEEPING = (
    row("alias.default lift.default positive.default", "self", same, same_back),
    row("contiguous.default", "self, -memory_format=None", same, same_back),
    row("detach.default", "self", lambda self: ops.stop_gradient(self), same_back),
    row("clone.default", "self, -memory_format=None", same),
    row("lift_fresh_copy.default", "self", same),
    row("lift_fresh.default", "self", same, same_back),
    row("to.dtype", f"self, dtype, {_TO}", cast, cast_back),
    row("to.device", f"self, -device, dtype, {_TO}", cast, cast_back),
    row("to.dtype_layout", f"self, dtype=None, -layout=None, -device=None, -pin_memory=None, {_TO}", cast, cast_back),
    row("to.other", f"self, other, {_TO}", lambda self, other: ops.cast(self, other.dtype), cast_back),
    row("_to_copy.default", "self, dtype=None, -layout=None, -device=None, -pin_memory=None, -non_blocking=False, "
        "-memory_format=None", cast),
    row("type_as.default", "self, other", lambda self, other: ops.cast(self, other.dtype), cast_back),
    row("_assert_tensor_metadata.default",
        "-a, -size=None, -stride=None, -dtype=None, -device=None, -layout=None", nothing),
    row("_assert_scalar.default", "-self, -assert_msg", nothing),
    row("_assert_async.msg", "-self, -assert_msg", nothing),
    row("sym_constrain_range.default sym_constrain_range_for_size.default", "-size, -min=None, -max=None", nothing),
)  # fmt: skip
"""Kinds that compute nothing."""

"""These classes of MindSpore's operators are a few operators here. They are made and called as operators are."""

from __future__ import annotations

import functools
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.composite_marks import CompositeMarks
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ir.types import FLOAT32
from mspc.ops.operator_arguments import describe


class Partial:
    """A function with its first arguments given. Called as `Partial()(function, *arguments)`; tensors may be among
    them."""

    def __call__(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return functools.partial(function, *arguments, **named)


class FloatStatus(CompositeMarks):
    """1 where a tensor holds an infinity or a NaN, else 0; of shape (1,), Float32."""

    def __init__(self) -> None:
        self.all_finite = ops.AllFinite()

    def __call__(self, x: Any) -> Any:
        return ops.Reshape()(ops.Cast()(ops.LogicalNot()(self.all_finite(x)), FLOAT32), (1,))


class _StatusWord(CompositeMarks):
    """An operator on the eight numbers in which an Ascend device notes overflows. There are none here: the numbers stay
    zeros, as a warning says."""

    def __init__(self) -> None:
        name = type(self).__name__
        say_once(
            "NPU status",
            f"{place_of_caller()}{name} finds no overflow here: no device notes them; gradients are looked at by "
            "ops.AllFinite(), ops.FloatStatus() or TrainOneStepWithLossScaleCell.get_overflow_status()",
        )

    def __call__(self, status: Any) -> Any:
        return ops.zeros_like(status)


class NPUAllocFloatStatus(_StatusWord):
    """Eight zeros, Float32."""

    def __call__(self) -> Any:
        return ops.zeros((8,), FLOAT32)


class NPUGetFloatStatus(_StatusWord):
    """Eight zeros. Called with what `NPUAllocFloatStatus()()` gives."""


class NPUClearFloatStatus(_StatusWord):
    """Eight zeros. Called with what `NPUAllocFloatStatus()()` gives."""


class NPUGetFloatStatusV2(_StatusWord):
    """Eight zeros. Called with eight zeros."""


class NPUClearFloatStatusV2(_StatusWord):
    """Eight zeros. Called with eight zeros."""


class ControlDepend:
    """MindSpore 1's order between two operators whose results are known by name; their order is that of the script
    here, as a warning says. Called as `ControlDepend()(src, dst)`, src ahead of dst.

    Raises:
        TypeError: depend_mode is no integer.
    """

    def __init__(self, depend_mode: int = 0) -> None:
        if isinstance(depend_mode, bool) or not isinstance(depend_mode, int):
            raise ApiTypeError(f"ControlDepend: depend_mode must be 0 or 1, not {describe(depend_mode)}")
        say_once(
            "ControlDepend",
            f"{place_of_caller()}ControlDepend changes nothing here: updates happen in the order of the script; "
            "ops.depend(value, before) says what a value waits for",
        )

    def __call__(self, src: Any, dst: Any) -> Any:
        return dst


class DropoutExt(CompositeMarks):
    """(input with elements set to 0 with probability p and the others divided by 1 - p, the mask). Called as
    `DropoutExt()(input, p, seed, offset)`.

    seed and offset, numbers known when the network is compiled, choose the mask; None draws it of the script's seed,
    and so do tensors, whose contents are not known then.
    """

    def __init__(self) -> None:
        self.in_strategy: Any = None

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> DropoutExt:
        """Say how x is sharded, and return the operator; out_strategy follows from that. Entries behind that of x,
        those of seed and offset, change nothing."""
        self.in_strategy = in_strategy if in_strategy is None else tuple(in_strategy)[:1]
        return self

    def __call__(self, input: Any, p: float = 0.5, seed: Any = None, offset: Any = None) -> Any:
        if isinstance(p, bool) or not isinstance(p, (int, float)):
            raise ApiTypeError(f"DropoutExt: p must be a number, not {describe(p)}")
        seeds = (seed, offset or 0) if isinstance(seed, int) else (0, 0)
        return ops.Dropout(1 - p, *seeds).shard(self.in_strategy)(input)


class _DropoutExtEach(DropoutExt):
    """What scripts import as one operator; every strategy makes another of it."""

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> DropoutExt:
        return DropoutExt().shard(in_strategy, out_strategy)


dropout_ext_op = _DropoutExtEach()


def make_range(start: int, limit: int | None = None, delta: int = 1) -> Any:
    """Integers from start, or from 0 to it where it is given alone, below limit, a tuple."""
    for name, value in (("start", start), ("limit", limit), ("delta", delta)):
        if isinstance(value, bool) or not (isinstance(value, int) or (value is None and name == "limit")):
            raise ApiTypeError(f"make_range: {name} must be an integer, not {describe(value)}")
    if delta == 0:
        raise ApiValueError("make_range: delta must not be 0")
    return tuple(range(start) if limit is None else range(start, limit, delta))


def identity(x: Any) -> Any:
    """What it is given."""
    return x


def add_flags(fn: Any = None, **flags: Any) -> Any:
    """Give a cell flags, or a decorator that does so; of a function they change nothing.

    Raises:
        TypeError: `fn` is neither.
    """
    if fn is None:
        return functools.partial(add_flags, **flags)
    if hasattr(fn, "add_flags"):
        return fn.add_flags(**flags)
    if not callable(fn):
        raise ApiTypeError(f"add_flags takes a Cell or a function, not {describe(fn)}")
    say_once("add_flags", f"{place_of_caller()}add_flags() changes nothing here: flags of functions are not read")
    return fn


class _Summary:
    """Notes a value for a summary of the training. Nothing is written, as a warning says. Called as `(name, value)`."""

    def __init__(self) -> None:
        say_once(
            "summaries",
            f"{place_of_caller()}{type(self).__name__} changes nothing here: no summary is written; callbacks see the "
            "loss, and ops.TensorDump writes tensors",
        )

    def __call__(self, name: str, value: Any) -> None:
        return None


class ScalarSummary(_Summary):
    """Notes a number."""


class TensorSummary(_Summary):
    """Notes a tensor."""


class ImageSummary(_Summary):
    """Notes images."""


class HistogramSummary(_Summary):
    """Notes how values are distributed."""


class InvertPermutation(CompositeMarks):
    """Where each number of a permutation stands in it, a tuple. Called with a tuple known when the network is compiled.

    Raises:
        ValueError: it is no permutation.
    """

    def __call__(self, order: Any) -> tuple[int, ...]:
        if sorted(order) != list(range(len(order))):
            raise ApiValueError(f"InvertPermutation: {tuple(order)} is no permutation of 0 to {len(order) - 1}")
        return tuple([list(order).index(place) for place in range(len(order))])

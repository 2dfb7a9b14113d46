"""Chooses sizes for inputs that are declared without them, where a network is compiled without a call.

Input:  `Tensor(shape=[Symbol(divisor=16, remainder=1), 64])`. Output: the type (17, 64), then (33, 64), ...

A Symbol describes sizes `divisor * n + remainder`. The same n is taken for all Symbols, so that sizes that belong
together, as 16 n and 16 n + 1, fit each other. Nothing is declared of None and -1: sizes that ranks divide are tried
for them, then, for the last dimension of a tensor, those of the network's own parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mspc.api.common.tensor import Symbol
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_state import is_open
from mspc.api.setting_kind import say_once
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType

MOST_PARAMETER_SIZES = 8
"""Sizes of parameters that are tried, the most frequent ones."""
Result = TypeVar("Result")


def compiled_for_declared(
    target: Any, args: Sequence[Any], ranks: int, compiled: Callable[[Sequence[Any]], Result]
) -> Result:
    """What `compiled` gives for the first sizes that it accepts; a warning says which they are.

    Args:
        target: what is compiled with `args`, some of which are open. ranks: that a dimension may be sharded by.

    Raises:
        MspcError: the network compiles for none of the sizes tried; why not for the first.
    """
    first: MspcError | None = None
    for scale, *unknown in _sizes(target, args, ranks):
        sized = [_sized(arg, scale, *unknown) for arg in args]
        try:
            found = compiled(sized)
        except MspcError as error:
            if first is None:
                first = error
                error.notes += (f"unknown sizes were taken as {_shown(args, sized)}, and as others",)
            continue
        say_once(
            "declared sizes",
            f"compile: unknown sizes are taken as {_shown(args, sized)}: the graph is of these; a call "
            "with others has its own",
        )
        return found
    assert first is not None
    raise first


def _sizes(target: Any, args: Sequence[Any], ranks: int) -> Iterator[tuple[int, int, int]]:
    """(n of all Symbols, size of dimensions of which nothing is declared, of those that are a tensor's last), in the
    order in which to try them."""
    scales = list(dict.fromkeys((1, 2, ranks, 2 * ranks)))
    of_ranks = {scale: ranks * min(scale, 2) for scale in scales}
    yield from ((scale, of_ranks[scale], of_ranks[scale]) for scale in scales)
    if any(_has_undeclared(arg) for arg in args):
        yield from ((scale, of_ranks[scale], size) for size in _parameter_sizes(target) for scale in scales)


def _parameter_sizes(target: Any) -> list[int]:
    parameters = target.get_parameters() if isinstance(target, Cell) else ()
    count = Counter(size for parameter in parameters for size in parameter.shape)
    return [size for size, _ in count.most_common(MOST_PARAMETER_SIZES)]


def _has_undeclared(arg: Any) -> bool:
    if isinstance(arg, tuple | list):
        return any(map(_has_undeclared, arg))
    return is_open(arg) and any(size in (None, -1) for size in arg.declared)


def _sized(arg: Any, scale: int, unknown: int, last: int) -> Any:
    """The argument with a type in the place of a tensor of unknown sizes."""
    if isinstance(arg, tuple | list):
        return type(arg)(_sized(item, scale, unknown, last) for item in arg)
    if not is_open(arg):
        return arg
    *leading, own = arg.declared
    shape = [*(_size_of(rule, scale, unknown) for rule in leading), _size_of(own, scale, last)]
    return TensorType(arg.dtype, tuple(shape))


def _size_of(rule: Any, scale: int, unknown: int) -> int:
    """What is declared of a dimension as a number: a Symbol's size for n = `scale`, or the nearest one that it allows;
    `unknown` where nothing is declared."""
    if not isinstance(rule, Symbol):
        return unknown if rule in (None, -1) else int(rule)
    size = max(rule.divisor * scale, rule.min - rule.remainder)
    size = -(-size // rule.divisor) * rule.divisor + rule.remainder
    if rule.max > rule.min:
        size = min(size, (rule.max - rule.remainder) // rule.divisor * rule.divisor + rule.remainder)
    return size


def _shown(args: Sequence[Any], sized: Sequence[Any]) -> str:
    """The shapes of the arguments that are open."""
    return ", ".join(
        str([item.shape if isinstance(item, TensorType) else item for item in one])
        if isinstance(one, tuple | list) else str(one.shape)
        for arg, one in zip(args, sized, strict=True)
        if is_open(arg)
    )  # fmt: skip

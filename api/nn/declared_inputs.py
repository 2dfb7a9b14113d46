"""`Cell.set_inputs` declares a cell's inputs by this module, which says whether a call is as declared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mspc.api.common.symbol import Symbol
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

__all__: tuple[str, ...] = ()


def declared(construct: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs by the names that `construct` has for them. Raises TypeError where it has none."""
    try:
        return dict(inspect.signature(construct).bind_partial(*inputs, **named).arguments)
    except TypeError as error:
        raise ApiTypeError(f"Cell.set_inputs: construct(): {error}") from None


@dataclass(frozen=True)
class Dimension:
    """A dimension of which a call may have any size that `rule`, a Symbol or None, allows.

    place: where the tensor stands among the arguments of the call, an index for every tuple around it. name: of the
    input. index: of the dimension. size: that of the call at hand.
    """

    place: tuple[int, ...]
    name: str
    index: int
    rule: Symbol | None
    size: int

    @property
    def label(self) -> str:
        return f"dimension {self.index} of input {self.name!r}"

    @property
    def said(self) -> str:
        """The sizes that it may have, in words."""
        rule = self.rule
        if rule is None:
            return "any size"
        words = [f"at least {rule.min}"] if rule.max <= rule.min else [f"from {rule.min} to {rule.max}"]
        words += [_multiple(rule)] if rule.divisor > 1 else []
        return ", ".join(words) if words != ["at least 1"] else "any size"

    def allows(self, size: int) -> bool:
        """Whether the dimension may have a size, whatever others have."""
        return not _reason(self.rule, size, {})


def check(name: str, construct: Callable[..., Any], said: Mapping[str, Any], args: Sequence[Any]) -> None:
    """Nothing where the tensors of a call to the cell `name` are as declared. Raises TypeError for an element type,
    ValueError for a shape that is not."""
    sizes: dict[int, int] = {}
    for label, _, wanted, found in _pairs(construct, said, args):
        _check_one(f"{name}: input {label!r}", wanted, found, sizes)


def open_dimensions(cell: Any, args: Sequence[Any]) -> list[Dimension]:
    """The dimensions of a call's tensors that were declared to a cell without a size; none of what is no cell."""
    said = getattr(cell, "_declared_inputs", {})
    return [
        Dimension(place, label, index, rule if isinstance(rule, Symbol) else None, found.shape[index])
        for label, place, wanted, found in (_pairs(cell.construct, said, args) if said else ())
        for index, rule in enumerate(wanted.declared or ())
        if isinstance(rule, Symbol) or rule in (None, -1)
    ]


def is_open(arg: Any) -> bool:
    """Whether an argument is a tensor of unknown sizes, or holds one."""
    if isinstance(arg, tuple | list):
        return any(map(is_open, arg))
    return isinstance(arg, Tensor) and arg.declared is not None


def _pairs(
    construct: Callable[..., Any], said: Mapping[str, Any], args: Sequence[Any]
) -> Iterator[tuple[str, tuple[int, ...], Tensor, Any]]:
    """(name, place among the arguments, the tensor that declares it, the tensor) of those that are both."""
    signature = inspect.signature(construct)
    given = signature.bind_partial(*args).arguments
    for index, (input_name, parameter) in enumerate(signature.parameters.items()):
        wanted, found = said.get(input_name), given.get(input_name)
        if isinstance(wanted, Tensor) and _is_tensor(found):
            yield input_name, (index,), wanted, found
        elif isinstance(wanted, tuple) and isinstance(found, tuple):
            own_arguments = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            for i, (one, other) in enumerate(zip(wanted, found, strict=False)):
                if isinstance(one, Tensor) and _is_tensor(other):
                    yield f"{input_name}[{i}]", (index + i,) if own_arguments else (index, i), one, other


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | TensorType)


def _check_one(what: str, wanted: Tensor, found: Any, sizes: dict[int, int]) -> None:
    if wanted.dtype != found.dtype:
        raise ApiTypeError(f"{what} has element type {found.dtype}, but set_inputs declared {wanted.dtype}")
    allowed = wanted.shape if wanted.declared is None else wanted.declared
    if len(allowed) != len(found.shape):
        raise ApiValueError(
            f"{what} has shape {found.shape}, but set_inputs declared {len(allowed)} dimensions: {_shown(allowed)}"
        )
    for place, (rule, size) in enumerate(zip(allowed, found.shape, strict=True)):
        reason = _reason(rule, size, sizes)
        if reason:
            raise ApiValueError(
                f"{what} has shape {found.shape}, but set_inputs declared {_shown(allowed)}: dimension {place} must be "
                f"{reason}, not {size}"
            )


def _reason(rule: Any, size: int, sizes: dict[int, int]) -> str:
    """What a size must be and is not, "" where it is."""
    if not isinstance(rule, Symbol):
        return "" if rule in (None, -1, size) else str(rule)
    least, most = rule.min, rule.max if rule.max > rule.min else None
    if size < least or (most is not None and size > most):
        return f"from {least} to {most}" if most is not None else f"at least {least}"
    if size % rule.divisor != rule.remainder:
        return _multiple(rule)
    if rule.unique and sizes.setdefault(id(rule), size) != size:
        return f"{sizes[id(rule)]}, as where the same symbol stands elsewhere"
    return ""


def _multiple(rule: Symbol) -> str:
    return f"a multiple of {rule.divisor}" + f" and {rule.remainder} more" * bool(rule.remainder)


def _shown(allowed: Sequence[Any]) -> str:
    return "(" + ", ".join("?" if rule in (None, -1) else str(rule) for rule in allowed) + ",)"[len(allowed) > 1 :]

"""`shard` makes a cell or function whose inputs are sharded as a script says; of a function it is plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mspc.api import call_handler
from mspc.api.common.parameter_plan import checked_plan
from mspc.api.context import PYNATIVE_MODE, get_context
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.ops.primitive import check_strategy
from mspc.api.parallel.layout import Layout
from mspc.api.placement import note_shard_options
from mspc.ir.late_dataclass import dataclass

__all__ = ["Layout", "shard"]


def shard(
    fn: Any, in_strategy: Any, out_strategy: Any = None, parameter_plan: Any = None, device: str = "", level: int = 0
) -> ShardedFunction:
    """`fn`, its inputs sharded by `in_strategy`, one tuple or Layout per tensor.

    Args:
        parameter_plan: how parameters of the Cell (or of that whose method `fn` is) are sharded, by name or path as
            "self.dense.weight". device, level: say that they change nothing.

    Called by itself it takes global tensors and gives global ones, as on one device, unless the script has set
    `dataset_strategy` or `full_batch`. In PyNative mode what is made so calls nothing else that is, as in MindSpore.

    Raises:
        TypeError: `fn` is not callable, or a strategy is none. ValueError: a strategy is impossible, or a
            parameter is none of the Cell's.
    """
    if not isinstance(fn, Cell) and not callable(fn):
        raise ApiTypeError(f"shard takes a Cell or a function, not {type(fn).__name__}")
    owner = fn if isinstance(fn, Cell) else getattr(fn, "__self__", None)
    if parameter_plan and not isinstance(owner, Cell):
        raise ApiValueError("shard: a parameter_plan needs a Cell or its method; a function holds no parameters")
    note_shard_options("shard", device, level)
    return ShardedFunction(
        fn,
        check_strategy(in_strategy, "shard: in_strategy"),
        check_strategy(out_strategy, "shard: out_strategy"),
        checked_plan(owner, parameter_plan, "shard"),
        get_context("mode") == PYNATIVE_MODE,
    )


@dataclass(frozen=True)
class ShardedFunction:
    """`fn` with strategies: in_strategy per input, out_strategy per output, parameter_plan as
    (Parameter, strategy). in_pynative: it was made in PyNative mode.

    Called by itself it takes global tensors, the same on every rank, and gives global ones, as on one device, unless
    the script has set `dataset_strategy` or `full_batch`.
    """

    takes_global_inputs: ClassVar[bool] = True

    fn: Callable[..., Any]
    in_strategy: tuple[Any, ...] | None
    out_strategy: tuple[Any, ...] | None = None
    parameter_plan: tuple[tuple[Any, Any], ...] = ()
    in_pynative: bool = False

    def __call__(self, *args: Any) -> Any:
        return call_handler.current().call(self, args)

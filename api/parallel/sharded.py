"""`shard(fn, ...)` returns a function with strategies, which is plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mspc.api import call_handler
from mspc.ir.late_dataclass import dataclass


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

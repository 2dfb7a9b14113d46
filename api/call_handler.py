"""This is the hook through which a called cell reaches the compiler. Commands and `import mspc` decide what stands
behind it."""

from __future__ import annotations

import importlib
from typing import Any, Protocol


class CallHandler(Protocol):
    """Compiles and runs a cell or a function of a script.

    One whose first call ends the script, so that only the types of its arguments matter, has `types_only = True`.
    """

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Run `target(*args)` as a compiled graph: a Tensor, or tuples, lists and dicts of them, as it returns them."""
        ...

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        """Run `target(*args)` on all ranks that share a run, and hand out on each of them what all have computed.

        A rank without further data gives None for its arguments, and gets what the others have computed; None where
        no rank had any.
        """
        ...

    def of_all_ranks(self, number: float, what: str = "", note: str = "") -> list[float]:
        """The numbers that the ranks call this with, by rank. what, note: what messages say a rank is doing where the
        others do not come."""
        ...

    def steps(self) -> dict[str, int]:
        """How many steps each graph has run, earlier runs included."""
        ...

    def go_on_from(self, steps: dict[str, int]) -> None:
        """Count the steps of graphs on from those of an earlier run; their random numbers continue, too."""
        ...

    def collective(self, op: Any, types: Any, arrays: Any) -> Any:
        """The result of a collective's kernel on this rank's arrays of these types; the ranks of its group call this
        together."""
        ...

    def synchronize(self) -> None:
        """Wait for all steps under way; raises what they raise."""
        ...

    def operations(self) -> tuple[float, float, float, float]:
        """Floating-point operations of the matrix products of the step that ran last: of all ranks together, and so
        many with what is recomputed; of this rank, and so many with what it recomputes."""
        ...

    def most_memory(self) -> int:
        """Bytes of a GPU that the graphs of this rank have taken at most; 0 on the CPU."""
        ...


_installed: list[CallHandler] = []


def install(handler: CallHandler | None) -> CallHandler | None:
    """Put `handler` in place (None: the default again) and return the one that was there."""
    before = _installed[0] if _installed else None
    _installed[:] = [] if handler is None else [handler]
    return before


def installed() -> CallHandler | None:
    """The handler in place; None before the first call of a script run by plain `python`."""
    return _installed[0] if _installed else None


def shows_types_only() -> bool:
    """Whether the first call ends the script, so that its arguments are there for their types alone."""
    return bool(_installed) and getattr(_installed[0], "types_only", False)


def current() -> CallHandler:
    """The handler in place; the default one trains under plain `python` or `mpirun`."""
    if not _installed:
        # By name: the layer of the commands stands above this one.
        module = importlib.import_module("mspc.engine.default_handler")
        _installed.append(module.default_handler())
    return _installed[0]

"""The interfaces through which MindSpore's surface reaches the compiler, the runtime and the readers.

`import mspc` installs the backend, and commands install the handler of calls, so that this package names no module of a
higher layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class CallHandler(Protocol):
    """Compiles and runs a cell or a function of a script.

    One whose first call ends the script, so that only the types of its arguments matter, has `types_only = True`.
    """

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Run `target(*args)` as a compiled graph: a Tensor, or tuples, lists and dicts of them, as it returns them."""
        ...

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        """Run `target(*args)` on all ranks that share a run, and hand out on each of them the results of all.

        A rank without further data gives None for its arguments, and gets the results of the others; None if no rank
        had any.
        """
        ...

    def of_all_ranks(self, number: float, what: str = "", note: str = "") -> list[float]:
        """The numbers that the ranks call this with, by rank. what, note: the activity of a rank in messages, if the
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
        """Wait for all steps under way; raises their errors."""
        ...

    def operations(self) -> tuple[float, float, float, float]:
        """Floating-point operations of the matrix products of the step that ran last: of all ranks together, and so
        many with recomputation; of this rank, and so many with recomputation."""
        ...

    def most_memory(self) -> int:
        """Bytes of a GPU that the graphs of this rank have taken at most; 0 on the CPU."""
        ...


class Backend(Protocol):
    """The layers above, as modules of scripts use them."""

    def default_handler(self) -> CallHandler:
        """Return the handler for the calls of a script that plain Python or mpirun started."""
        ...

    def launched_rank(self) -> dict[str, Any]:
        """Return rank, size, local rank and local size as the launcher of this process set them."""
        ...

    def compile_in_memory(self, network: Any, args: tuple[Any, ...]) -> Any:
        """Compile a call without running it: strategies, layouts, operators and `compile_id`."""
        ...

    def write_mindir(self, network: Any, inputs: tuple[Any, ...], path: Path) -> None:
        """Write a network with its parameters as a `.mindir` file."""
        ...

    def exported_network(self, path: Path, returns: str | None, sizes: Mapping[str, int], precision: str) -> Any:
        """Read a program of `torch.export.save` as a cell."""
        ...


_loaders: list[Callable[[], Backend]] = []


def install_backend(load: Callable[[], Backend]) -> None:
    """Set the function that loads the backend; it is called at the first use."""
    _loaders[:] = [load]


def backend() -> Backend:
    """Return the installed backend."""
    return _loaders[0]()


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
    """Return whether the first call ends the script, so that its arguments are there for their types alone."""
    return bool(_installed) and getattr(_installed[0], "types_only", False)


def current() -> CallHandler:
    """The handler in place; the default one trains under plain `python` or `mpirun`."""
    if not _installed:
        _installed.append(backend().default_handler())
    return _installed[0]

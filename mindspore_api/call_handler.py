"""Interfaces between MindSpore's surface and the compiler, the runtime and the readers.

`import mspc` installs the backend, and commands install the handler of calls, so that this package imports no module of
a higher layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class CallHandler(Protocol):
    """Compiles and runs a cell or a function of a script.

    A handler that ends the script at the first call, so that only the types of its arguments matter, has `types_only =
    True`.
    """

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Run `target(*args)` as a compiled graph, and return its result: a Tensor, or tuples, lists and dicts of
        Tensors."""

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        """Run `target(*args)` on all ranks that share a run, and return the results of all on each of them.

        A rank without further data passes None for its arguments, and gets the results of the others; None if no rank
        had data.
        """

    def gather_numbers(self, number: float, what: str = "", note: str = "") -> list[float]:
        """Return the numbers that the ranks pass, by rank. what, note: the activity of a rank in messages, if the
        others do not make the call."""

    def steps(self) -> dict[str, int]:
        """Return the number of steps that each graph has run, including earlier runs."""

    def resume_steps(self, steps: dict[str, int]) -> None:
        """Count the steps of graphs on from those of an earlier run; their random numbers continue, too."""

    def collective(self, op: Any, types: Any, arrays: Any) -> Any:
        """Return the result of a collective's kernel on this rank's arrays of these types; the ranks of its group make
        this call together."""

    def synchronize(self) -> None:
        """Wait for all steps under way; raises their errors."""

    def operations(self) -> tuple[float, float, float, float]:
        """Return the floating-point operations of the matmuls of the last step: for all ranks, without and with
        recomputation, then for this rank, without and with recomputation."""

    def peak_memory(self) -> int:
        """Return the peak bytes of GPU memory of this rank's graphs; 0 on the CPU."""


class Backend(Protocol):
    """The layers above, as modules of scripts use them."""

    def default_handler(self) -> CallHandler:
        """Return the handler for the calls of a script that plain Python or mpirun started."""

    def launched_rank(self) -> dict[str, Any]:
        """Return rank, size, local rank and local size as the launcher of this process set them."""

    def compile_in_memory(self, network: Any, args: tuple[Any, ...]) -> Any:
        """Compile a call without running it: strategies, layouts, operators and `compile_id`."""

    def exported_network(self, path: Path, returns: str | None, sizes: Mapping[str, int], precision: str) -> Any:
        """Read a program of `torch.export.save` as a cell."""


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
    """Return the handler in place, or None before the first call of a script run by plain `python`."""
    return _installed[0] if _installed else None


def shows_types_only() -> bool:
    """Return whether the first call ends the script, so that only the types of its arguments are needed."""
    return bool(_installed) and getattr(_installed[0], "types_only", False)


def current() -> CallHandler:
    """Return the handler in place; the default one trains under plain `python` or `mpirun`."""
    if not _installed:
        _installed.append(backend().default_handler())
    return _installed[0]

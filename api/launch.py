"""The hook through which a called cell reaches the compiler. Commands and `import mspc` decide
what stands behind it.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol


class Launcher(Protocol):
    """Compiles and runs a cell or a function of a script."""

    def launch(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Run `target(*args)` as a compiled graph: a Tensor, or a (nested) tuple of Tensors."""
        ...

    def synchronize(self) -> None:
        """Wait for all steps under way; raises what they raise."""
        ...

    def most_memory(self) -> int:
        """Bytes of a GPU that the graphs of this rank have taken at most; 0 on the CPU."""
        ...


_installed: list[Launcher] = []


def install(launcher: Launcher | None) -> Launcher | None:
    """Put `launcher` in place (None: the default again) and return the one that was there."""
    before = _installed[0] if _installed else None
    _installed[:] = [] if launcher is None else [launcher]
    return before


def installed() -> Launcher | None:
    """The launcher in place; None before the first launch of a script run by plain `python`."""
    return _installed[0] if _installed else None


def launcher() -> Launcher:
    """The launcher in place; the default one trains under plain `python` or `mpirun`."""
    if not _installed:
        # By name: the layer of the commands stands above this one.
        module = importlib.import_module("mspc.engine.launch")
        _installed.append(module.default_launcher())
    return _installed[0]

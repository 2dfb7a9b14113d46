"""mspc: a compiler for networks written in MindSpore's Python style and split over many devices.

Public names (`mspc.nn`, `mspc.Tensor`, ...) are looked up on first use, so that `import mspc` costs nothing.
"""

import importlib
import sys
from types import TracebackType
from typing import Any

from mspc.mindspore_api import VERSION
from mspc.mindspore_api.alias import install_public
from mspc.mindspore_api.call_handler import install_backend

__version__ = VERSION


install_public()
install_backend(lambda: importlib.import_module("mspc.backend"))


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a program with the text and the exit status of a mistake instead of a traceback, which has mspc's lines."""
    from mspc.ir.diagnostics import MspcError
    from mspc.mindspore_api.errors import at_users_line  # looked up late: `import mspc` costs nothing

    if not isinstance(error, MspcError):
        sys.__excepthook__(kind, error, trace)
        return
    at_users_line(error)
    sys.stdout.flush()
    print(error.report(), file=sys.stderr, flush=True)
    raise SystemExit(error.exit_status)  # Python ends with it


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _report


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    if name == "view":
        return importlib.import_module("mspc.commands.view.notebook").view  # commands import what asks here for names
    from mspc.mindspore_api.alias import public
    from mspc.mindspore_api.index.module import beside, listed  # looked up late: `import mspc` costs nothing

    return listed(__name__) if name == "__all__" else public(beside(__name__)(name))


def __dir__() -> list[str]:
    from mspc.mindspore_api.index.module import listed

    return sorted({*listed(__name__), "view", *(name for name in globals() if name.startswith("__"))})

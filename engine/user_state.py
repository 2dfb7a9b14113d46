"""Separates everything global that a script can see and change, so that simulated ranks each have their own."""

from __future__ import annotations

import os
import random
import sys
from io import TextIOBase
from types import ModuleType
from typing import Any

import numpy as np

from mspc.api import call_handler, state
from mspc.api.errors import is_library


class UserState:
    """One simulated rank's modules, random generators, arguments, working folder, session and output.

    Between `enter` and `leave` this rank's script runs; only one rank is inside at a time.

    Args:
        session: of the rank. handler: that its cells call. shown: whether its output is printed.
        shared_modules: names of modules that are no rank's own; those that are there now when None. Names of modules
            of mspc, Python and installed libraries that are loaded later are added to it. What a script has imported
            besides is set aside while this rank's runs.
    """

    def __init__(
        self,
        session: state.Session,
        handler: call_handler.CallHandler | None,
        shown: bool,
        shared_modules: set[str] | None = None,
    ) -> None:
        self._session = session
        self.handler = handler
        # Unseeded ranks differ, as processes do, but equally in every run.
        self._bits: Any = np.random.MT19937(np.random.SeedSequence((0x72616E6B, session.rank)))
        self._random = random.Random(session.rank).getstate()
        self._modules: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}
        self._shared = set(sys.modules) if shared_modules is None else shared_modules
        self._arguments = list(sys.argv)
        self._path = list(sys.path)
        self._folder = os.getcwd()
        self._output: Any = LineWriter(sys.stdout) if shown else Nowhere()
        self._before: tuple[Any, ...] = ()
        self._main = sys.modules["__main__"]

    def enter(self) -> None:
        """Put this rank's state in place."""
        self._before = (
            state.swap(self._session), call_handler.install(self.handler), np.random.get_bit_generator(),
            random.getstate(), sys.argv, sys.path, sys.stdout,
        )  # fmt: skip
        np.random.set_bit_generator(self._bits)
        random.setstate(self._random)
        self._aside = self._taken_out()
        sys.modules.update(self._modules)
        sys.argv, sys.path, sys.stdout = self._arguments, self._path, self._output
        if os.getcwd() != self._folder:
            os.chdir(self._folder)

    def leave(self) -> None:
        """Take this rank's state away again, as it is now."""
        self._bits = np.random.get_bit_generator()
        self._random = random.getstate()
        self._arguments, self._path, self._output = sys.argv, sys.path, sys.stdout
        self._folder = os.getcwd()
        main = sys.modules.pop("__main__")
        self._modules = {"__main__": main, **self._taken_out()}
        sys.modules.update({**self._aside, "__main__": self._main})
        session, handler, bits, numbers, sys.argv, sys.path, sys.stdout = self._before
        state.swap(session)
        call_handler.install(handler)
        np.random.set_bit_generator(bits)
        random.setstate(numbers)

    def _taken_out(self) -> dict[str, ModuleType]:
        """The modules that are a script's own, `__main__` aside, which are there no longer."""
        fresh = sys.modules.keys() - self._shared
        if not fresh:
            return {}
        # A copy: asking a module that is imported late for its file may import others.
        own = [name for name, module in list(sys.modules.items()) if name in fresh and _is_users(module)]
        self._shared |= fresh.difference(own)
        return {name: sys.modules.pop(name) for name in own if name != "__main__"}

    def close(self) -> None:
        """Print what is left of an unfinished line."""
        self._output.flush_line()


class LineWriter(TextIOBase):
    """Passes complete lines on, so that lines of several ranks do not mix."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base
        return getattr(self._target, "encoding", "utf-8")

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, rest = (self._line + text).rpartition("\n")
        if newline:
            self._target.write(lines + newline)
        self._line = rest
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def flush_line(self) -> None:
        if self._line:
            self._target.write(self._line + "\n")
            self._line = ""
        self._target.flush()


class Nowhere(TextIOBase):
    """Takes text and drops it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush_line(self) -> None:
        """Nothing is left."""


class HeldBack(TextIOBase):
    """Holds text until it is released or dropped, then passes everything on."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._held: list[str] | None = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._held is None:
            self._target.write(text)
        else:
            self._held.append(text)
        return len(text)

    def flush(self) -> None:
        if self._held is None:
            self._target.flush()

    def drop(self) -> None:
        """Forget what was held."""
        self._held = []

    def release(self) -> None:
        """Pass on what was held and what follows."""
        held, self._held = self._held, None
        for text in held or ():
            self._target.write(text)


def _is_users(module: Any) -> bool:
    """Whether a module is the script's own: not mspc's, the standard library's, or an installed one."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not isinstance(module, ModuleType):
        return False
    return not is_library(file)

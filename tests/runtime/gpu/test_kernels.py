"""Kernels of CUDA C++: each source is compiled once, beside the host and beside others, and loaded before it is due."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.runtime.gpu.kernels import KernelCache


class Library:
    """In place of CuPy: modules whose compiler waits until two of them are at work, where `together` says so."""

    def __init__(self, together: bool = False) -> None:
        self.compiled: list[str] = []
        self.launched: list[tuple[Any, ...]] = []
        self.loaded: list[str] = []
        self.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(use=lambda: None))
        self._meeting = threading.Barrier(2, timeout=30) if together else None

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # CuPy's name
        source = code[code.rindex("//") :]

        def get_function(name: str) -> Any:
            if source not in self.compiled:
                if self._meeting is not None:
                    self._meeting.wait()
                self.compiled.append(source)
            if "wrong" in source:
                raise ValueError(f"{source} has no {name}")
            self.loaded.append(name)
            return Function(self, name)

        return SimpleNamespace(get_function=get_function)


class Function:
    max_dynamic_shared_size_bytes = 0

    def __init__(self, library: Library, name: str) -> None:
        self._library, self._name = library, name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int
    ) -> None:
        self._library.launched.append((self._name, grid, block, arguments, shared_mem))


def test_a_source_is_compiled_once_for_all_its_kernels() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    first, second = kernels.kernel("// one", "first"), kernels.kernel("// one", "second")
    assert kernels.kernel("// one", "first") is first
    first(3, 32, [np.int32(1)])
    second((2, 2), 64, [], shared=1 << 16)
    assert library.compiled == ["// one"]
    assert library.launched == [("first", (3,), (32,), (np.int32(1),), 0), ("second", (2, 2), (64,), (), 1 << 16)]


@pytest.mark.skipif(KernelCache(Library(), 0).threads < 2, reason="this process has one core")
def test_sources_are_compiled_beside_each_other() -> None:
    library = Library(together=True)
    kernels = KernelCache(library, 0)
    kernels.kernel("// one", "first")
    kernels.kernel("// two", "second")
    kernels.wait()
    assert sorted(library.compiled) == ["// one", "// two"]


def test_all_are_loaded_before_something_waits_for_them() -> None:
    library = Library()
    kernels = KernelCache(library, 0)
    hold, free = kernels.kernel("// one", "hold"), kernels.kernel("// one", "free")
    kernels.wait()
    loaded = list(library.loaded)
    hold(1, 1, ())
    free(1, 1, ())
    assert library.loaded == loaded


def test_what_the_compiler_says_comes_when_kernels_are_loaded_with_the_node_that_asked() -> None:
    kernels = KernelCache(Library(), 0)
    kernels.node = "the node"
    kernel = kernels.kernel("// wrong", "first")
    kernels.node = "another one"
    for load in (kernels.wait, lambda: kernel(1, 1, ())):
        with pytest.raises(ValueError, match="has no first") as caught:
            load()
        assert caught.value.node == "the node"  # type: ignore[attr-defined]  # it is put there

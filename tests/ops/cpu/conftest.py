"""A compiler for the tests of compiled loops."""

from collections.abc import Iterator
from typing import Any

import pytest

from mspc.ops.cpu.loops import library, program


@pytest.fixture(scope="module")
def quick_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of a module's tests, and a compiler that is quick: loops are vectorised all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(library, "FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in library.FLAGS))
        yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of functions of the libraries that a test compiles."""
    found: list[int] = []
    functions_of = program.functions_of

    def counted(sources: Any, *rest: Any) -> Any:
        found.append(len(sources))
        return functions_of(sources, *rest)

    monkeypatch.setattr(program, "functions_of", counted)
    return found

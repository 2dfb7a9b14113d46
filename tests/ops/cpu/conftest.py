"""A compiler for the tests of compiled loops."""

from collections.abc import Iterator
from typing import Any

import pytest

from mspc.ops.cpu.loops import library, program


@pytest.fixture(scope="module")
def quick_compiler() -> Iterator[None]:
    """A compiler that is quick: loops are vectorised all the same. Its libraries have their own names in the cache."""
    with pytest.MonkeyPatch.context() as patch:
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

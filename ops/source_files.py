"""C++ and CUDA sources, each in a file beside the modules that compile it."""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
_PLACEHOLDER = re.compile(r"@(\w+)@")


def source_text(path: str, **values: object) -> str:
    """Return the text of a file, with the files that it includes by `#include "..."` and a value in place of each
    `@name@`. Raise ValueError if a placeholder has no value, or a value no placeholder. path: from the package's
    folder, as "ops/cuda/transpose.cu"."""
    parts = _parts(path)
    if values.keys() != set(parts[1::2]):
        raise ValueError(f"{path} has the placeholders {sorted(set(parts[1::2]))}, the values are {sorted(values)}")
    return "".join(str(values[part]) if i % 2 else part for i, part in enumerate(parts))


@functools.cache
def _parts(path: str) -> tuple[str, ...]:
    """Return texts and names of placeholders by turns."""
    return tuple(_PLACEHOLDER.split(_text(path)))


@functools.cache
def _text(path: str) -> str:
    text = (_PACKAGE / path).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _text(posixpath.join(posixpath.dirname(path), found[1])), text)

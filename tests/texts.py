"""Texts in other languages than Python, and tables, in files beside the tests that read them."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

IMPORTS = """import mindspore as ms
import numpy as np
from mindspore import Layout, Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
"""
"""The first lines of scripts."""


@cache
def _sections(file: Path) -> dict[str, str]:
    _, *parts = re.split(r"^(?://|#) ----- (\w+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def text_of(file: Path, name: str, **values: object) -> str:
    """Return a section of a file, with values in place of `@their names@`.

    A line of five dashes and the name of a section begins it; the line is a comment of the file's language.
    """
    text = _sections(file)[name]
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text


@cache
def _tables(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def table_of(file: Path, name: str) -> Any:
    """Return a table, or a list, of a TOML file."""
    return _tables(file)[name]

"""JSON and TOML of files: what no reader takes, and what would be read otherwise than it was meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json, parsed_toml
from mspc.plans.files.plan_file import read_plan
from mspc.search.calibration.machine_file import read_machine


@pytest.mark.parametrize(("text", "message"), [
    ("[" * 100_000, "brackets stand too deep in brackets"),
    ('{"a": {"b": 1, "c": 2, "b": 3}}', "it has an entry 'b' twice"),
    (b"\xff", "it is not text in UTF-8"),
    (b" \n", "it is empty"),
    ("9" * 5000, "Exceeds the limit"),
])  # fmt: skip
def test_json_that_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed_json(text)


def test_files_of_other_editors() -> None:
    """With the mark of UTF-8 before it, and the ends of lines of Windows."""
    assert parsed_json(b'\xef\xbb\xbf{"a":\r\n1}') == {"a": 1}
    assert parsed_toml(b'\xef\xbb\xbfa = 1\r\nb = """x\r\ny"""\r\n') == {"a": 1, "b": "x\ny"}
    with pytest.raises(ValueError, match="it is not text in UTF-8"):
        parsed_toml("a = 'Größe'".encode("latin-1"))


@pytest.mark.parametrize("read", [read_machine, read_plan])
def test_brackets_in_brackets_of_toml(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("name = " + "[" * 9999)
    with pytest.raises(MspcError, match=re.escape(f"{path} is no TOML file: brackets stand too deep in brackets")):
        read(path)

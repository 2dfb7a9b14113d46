"""Source lines in errors: as wide as a terminal, the carets below what they are about.

How messages and profiles name nodes that are several.
Names from files reach no terminal as they are: what is printed has no control characters but ends of lines.
JSON and TOML of files: what no reader takes, and what would be read otherwise than it was meant.
The text is that of `json.dumps(content, indent=1)`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mspc.commands.checkpoints import check_checkpoint, diff_checkpoints, show_checkpoint
from mspc.ir.diagnostics import LONGEST_LINE, ErrorGroup, Location, MspcError, excerpt, shown
from mspc.ir.files.parsing import indented, parsed_json, parsed_toml
from mspc.ir.graph import Node
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.elementwise import Exp
from mspc.plans.files.plan_file import read_plan
from mspc.search.calibration.machine_file import read_machine

CALL = "ops.concat((x, self.w), 7)"
LINES = (
    f"return {CALL}",
    f"        return self.first(self.second(self.third(self.fourth(x)))) + self.fifth(y) + {CALL} + self.sixth(x)",
    f"        größe = '漢字漢字'; return self.relu({CALL}) + self.relu(self.relu(self.relu(self.relu(x))))",
    f"        name = 'e\u0301e\u0301'; return {CALL}",
)


def cells(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def under(lines: list[str]) -> str:
    """The text above the carets of a terminal."""
    text, carets = lines
    begin, end = len(carets) - len(carets.lstrip()), len(carets)
    return "".join(c for i, c in enumerate(text) if begin <= cells(text[:i]) < end)


@pytest.mark.parametrize("width", [None, 120, 80, 60])
@pytest.mark.parametrize("line", LINES)
def test_carets_stand_below_the_call(line: str, width: int | None) -> None:
    begin = line.index(CALL) + 1
    lines = excerpt(line, begin, begin + len(CALL), width)
    assert under(lines) == CALL
    assert width is None or max(map(cells, lines)) < width
    if width is None:
        assert lines[0].strip() == line.strip()


def test_what_is_longer_than_a_terminal_is_shown_from_its_beginning() -> None:
    line = f"    x = call({'argument, ' * 50})"
    lines = excerpt(line, 9, len(line) + 1, 80)
    assert under(lines).startswith("call(argument, ")
    assert lines[0].endswith("...")
    assert max(map(len, lines)) < 80
    lines = excerpt("x" * 5000, 4000, 4001)
    assert under(lines) == "x"
    assert len(lines[0]) <= LONGEST_LINE + 4


def test_texts_are_broken_at_spaces_on_a_terminal_alone() -> None:
    error = MspcError(
        "MatMul 'matmul': dimension 0 of input 1 is sharded into 2 slices, but dimension 1 of input 0 into 4",
        Location("net.py", 3, 5, 10, "    x = y"), notes=["shard both into 4, or both into 2, " * 4],
    )  # fmt: skip
    whole = error.render().splitlines()
    assert str(error).splitlines() == whole
    for text in (error, ErrorGroup([error, error])):
        lines = text.render(60).splitlines()
        assert max(map(len, lines)) <= 60
        assert " ".join(" ".join(lines).split()).startswith(whole[0])
    assert lines[1].startswith("    ")


def labelled(*parts: str) -> str:
    node = Node(Exp(), [], TensorType(FLOAT32, ()))
    node.attrs["fused"] = parts
    return node.label


def test_parts_are_named_while_they_can_be_read() -> None:
    assert labelled("Add", "Exp 'exp'") == "Exp of Add, Exp 'exp'"
    assert labelled("x" * 1000) == f"Exp of {'x' * 1000}"
    assert labelled("x" * 300, "y" * 100, "z") == f"Exp of {'x' * 300}, {'y' * 100} and 1 more"
    assert labelled(*["part"] * 1000) == f"Exp of {', '.join(['part'] * 100)} and 900 more"


HOSTILE = "w\x1b[2J\x1b]0;title\x07\r\nrank 0 \x9b31m\u202eevil\x00"


def harmless(text: str) -> bool:
    return all(c == "\n" or (c.isprintable() and c not in "\u202e") for c in text)


def test_control_characters_are_escaped() -> None:
    assert shown("plain, größer, 😀") == "plain, größer, 😀"
    assert shown("a\x1b[1mb\nc\td\x9b\u2028\u202e") == r"a\x1b[1mb\nc\td\x9b\u2028\u202e"
    assert shown("a\n\tb\r\x1b", lines=True) == "a\n\tb" + r"\r\x1b"
    assert shown("\ud800") == r"\ud800"


def test_checkpoints_with_hostile_names(tmp_path: Path, capsys: Any) -> None:
    ones = np.ones(2, np.float32)
    save_file({HOSTILE: ones}, tmp_path / "a.safetensors", {"mspc": json.dumps({"texts": {HOSTILE: HOSTILE}})})
    save_file({f"{HOSTILE}2": ones}, tmp_path / "b.safetensors")
    show_checkpoint(tmp_path / "a.safetensors", None, None)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 4  # title, headings, a row, and the text
    assert harmless(said)
    assert diff_checkpoints((tmp_path / "a.safetensors", tmp_path / "b.safetensors"), (None, None), None) == 1
    assert check_checkpoint(tmp_path / "a.safetensors", None, None) == 0
    assert harmless(capsys.readouterr().out)


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


TEXTS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
CONTENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5) | st.tuples(inner),
    max_leaves=25,
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(CONTENTS)
def test_the_text_is_that_of_json(content: Any) -> None:
    assert indented(content) == json.dumps(content, indent=1)

"""Names from files reach no terminal as they are: what is printed has no control characters but ends of lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mspc.commands.checkpoints import check_checkpoint, diff_checkpoints, show_checkpoint
from mspc.ir.diagnostics import shown

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

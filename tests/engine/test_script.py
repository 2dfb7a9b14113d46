"""Running a user's script: as plain Python would, with errors that show the user's own lines only."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mspc.engine.script import ScriptError, read_script, run_script_as
from mspc.ir.diagnostics import MspcError

Write = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes `train.py`; what running it changes is undone afterwards."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


FACTS = """
    import os, sys
    print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), __spec__)
    print(sys.modules["__main__"].__dict__ is globals())
    print(sorted(globals()))
"""


def test_script_sees_what_plain_python_shows(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(FACTS)
    plain = subprocess.run(
        [sys.executable, str(path), "--lr", "3"], capture_output=True, text=True, check=True
    ).stdout
    run_script_as("__main__", path, ["--lr", "3"])
    assert capsys.readouterr().out == plain


def test_error_shows_the_users_frames_only(script: Write) -> None:
    path = script(
        """
        import json

        def read():
            return json.loads("{")

        read()
        """
    )
    with pytest.raises(ScriptError) as raised:
        run_script_as("__main__", path, [])
    assert str(raised.value) == textwrap.dedent(
        f"""\
        Traceback (most recent call last):
          File "{path}", line 7, in <module>
            read()
          File "{path}", line 5, in read
            return json.loads("{{")
                   ^^^^^^^^^^^^^^^
        json.decoder.JSONDecodeError: """
    ) + ("Expecting property name enclosed in double quotes: line 1 column 2 (char 1)")
    assert raised.value.exit_status == 2


def test_error_keeps_its_cause(script: Write) -> None:
    path = script(
        """
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("no rate") from error
        """
    )
    with pytest.raises(ScriptError) as raised:
        run_script_as("__main__", path, [])
    text = str(raised.value)
    assert "ZeroDivisionError: division by zero" in text
    assert text.endswith("ValueError: no rate")
    assert "script.py" not in text


def test_own_errors_pass_unchanged(script: Write) -> None:
    path = script("from mspc.ir.diagnostics import MspcError\nraise MspcError('a strategy')\n")
    with pytest.raises(MspcError, match="a strategy") as raised:
        run_script_as("__main__", path, [])
    assert not isinstance(raised.value, ScriptError)


def test_exit_passes(script: Write) -> None:
    with pytest.raises(SystemExit) as raised:
        run_script_as("__main__", script("import sys\nsys.exit(3)\n"), [])
    assert raised.value.code == 3


def test_missing_script(tmp_path: Path) -> None:
    with pytest.raises(MspcError) as raised:
        read_script(tmp_path / "no.py")
    assert str(raised.value) == f"error: there is no script '{tmp_path}/no.py'"


def test_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(MspcError) as raised:
        read_script(tmp_path)
    assert str(raised.value) == f"error: cannot read the script '{tmp_path}': Is a directory"


def test_syntax_error_has_its_place(script: Write) -> None:
    path = script("x = 1\ny = (x +\n")
    with pytest.raises(MspcError) as raised:
        read_script(path)
    assert (
        str(raised.value) == f"{path}:2:5: error: not Python: '(' was never closed\n    y = (x +\n        ^"
    )


def test_binary_file_is_no_script(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_bytes(b"x = 1\0")
    with pytest.raises(MspcError, match="not Python: source code string cannot contain null bytes"):
        read_script(path)

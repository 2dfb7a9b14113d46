"""The page as a file: texts of a dump stay texts, its code is the one that came along and is built of its sources."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import H200
from mspc.commands.view.notebook import View
from mspc.commands.view.page import BUILT, html_of
from mspc.commands.view.stages import machine_facts
from mspc.ir.diagnostics import CONTROL
from tests.commands.view.reading import elements, read_back
from tests.conftest import HANG

EVIL = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> ]]>"


def facts(**others: Any) -> dict[str, Any]:
    return {"title": "net", "strings": [], **others}


def test_texts_of_a_dump_stay_texts() -> None:
    given = facts(title=EVIL, strings=[EVIL], notes=["<b>"])
    page = html_of(given)
    assert read_back(given) == given
    tags = [tag for tag, _ in elements(page)]
    assert tags == ["html", "head", "meta", "meta", "meta", "title", "style", "body", "div", "script", "script"]
    data = page.split('id="facts">')[1].split("</script>")[0]
    assert json.loads(data) == given
    assert "<" not in data


def test_only_the_code_that_came_along_may_run() -> None:
    page = html_of(facts())
    (policy,) = (a["content"] for _, a in elements(page) if a.get("http-equiv") == "Content-Security-Policy")
    code = (BUILT / "view.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert "unsafe" not in str(policy)
    assert "</script" not in code


def test_a_frame_of_a_notebook_holds_the_page() -> None:
    page = html_of(facts(title=EVIL))
    shown = View(page)._repr_html_()
    ((tag, attributes),) = elements(shown)
    assert (tag, attributes["sandbox"], attributes["srcdoc"]) == ("iframe", "allow-scripts", page)


def test_a_view_is_saved(tmp_path: Path) -> None:
    View(html_of(facts())).save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == html_of(facts())


def test_the_built_code_is_that_of_the_sources() -> None:
    said = re.search(r"sha256 ([0-9a-f]{64})", (BUILT / "view.js").read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    for path in sorted((BUILT.parent / "source").iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    assert said is not None
    assert said[1] == digest.hexdigest(), "run `npm ci && npm run build` in commands/view/page"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node for the tests of the page's code")
def test_the_pages_code_does_what_its_tests_ask() -> None:
    command = ["node", "--test", *map(str, sorted((BUILT.parent / "tests").glob("*.test.mjs")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a\x1b[31mred", r"a\x1b[31mred"), ("two\nlines", r"two\nlines"),
        ("\u202eturned\u2066\u200f", r"\u202eturned\u2066\u200f"),
        ("\x85\x7f\u2028", r"\x85\x7f\u2028"), ("\ud800", r"\ud800"), ("C:\\new\\u001b", "C:\\new\\u001b"),
        ('é漢😀 "q"', 'é漢😀 "q"'), ("\tindented", "\tindented"), ("\\\x00", r"\\x00"),
    ],
)  # fmt: skip
def test_control_characters_of_names_stand_as_escapes(name: str, wanted: str) -> None:
    page = html_of(facts(title=name, strings=[name], notes=[{name: name}]))
    found = json.loads(page.split('id="facts">')[1].split("</script>")[0])
    assert found["strings"] == [wanted]
    assert found["notes"] == [{wanted: wanted}]
    assert found["title"] == wanted
    assert not re.search(CONTROL, re.sub(r"[\n\t]", "", re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)))


def test_words_of_mspc_itself_have_no_control_characters() -> None:
    assert "\n" not in machine_facts(H200)["source"]

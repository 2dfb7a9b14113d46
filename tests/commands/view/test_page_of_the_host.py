"""The page of `mspc view` tells what lies on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.view.page import ViewOptions, facts_of, html_of
from tests import browser
from tests.commands.view.reading import QUIET
from tests.offload.test_offload import SCRIPT


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = tmp_path_factory.mktemp("page") / "net.py"
    script.write_text(SCRIPT)
    options = CompileOptions(1, script_arguments=("alone", "host", "none", "8", "4"), loudness=QUIET)
    return facts_of(str(script), ViewOptions(options))


def test_a_graph_has_its_bytes_on_the_host(facts: dict[str, Any]) -> None:
    moments = 2 * 4 * 5 * (4 * 8 + 8 + 8 * 4 + 4 + 2 * 4)
    assert facts["graphs"][0]["memory"]["sizes"]["on_host"] == moments


@pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not())
def test_a_reader_finds_them(facts: dict[str, Any], chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html_of(facts), encoding="utf-8")
    page = chromium.new_page()
    page.goto(f"file://{tmp_path}/page.html")
    page.wait_for_selector("html[data-ready]")
    page.locator("role=tab[name='memory']").click()
    assert "; on the host 3.3 KiB" in page.locator("figcaption").first.inner_text()
    page.locator("role=tab[name='ranks']").click()
    assert any("on the host" in row and "3.3 KiB" in row for row in page.locator("table.ranks tr").all_inner_texts())
    page.close()

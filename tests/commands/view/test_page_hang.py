"""The page of `mspc explain-hang` in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mspc.commands.explain_hang import explain_records
from tests.runtime.planted_hangs import as_pytorch_writes, drawn


@pytest.mark.parametrize("width", [1280, 390])
def test_the_fault_is_marked_in_the_calls_of_its_rank(chromium: Any, tmp_path: Path, width: int) -> None:
    job, records, *_ = drawn(5, "left out")
    for rank, record in enumerate(records):
        (tmp_path / f"rank_{rank}").write_bytes(as_pytorch_writes(record))
    explain_records(sorted(tmp_path.iterdir()), 0, None, None, tmp_path / "hang.html")
    page = chromium.new_page(viewport={"width": width, "height": 700})
    page.goto((tmp_path / "hang.html").as_uri())
    assert page.locator(".explanations li").first.inner_text().startswith(f"rank {job.rank} left out")
    assert page.locator("tr.culprit th").inner_text() == str(job.rank)
    assert page.locator("td.fault").count() == page.locator("tr.culprit td.fault").count() == 1
    page.locator("td.fault").hover()
    assert page.locator(".over").inner_text().startswith(f"rank {job.rank}: ")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()

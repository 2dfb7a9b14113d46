"""Pages of `mspc view` in a browser: how large they are, how soon they answer, how fast a scope opens.

    python -m benchmarks.view [--tries N]

A network of 126 layers on 8,192 ranks, of which rank 0 is compiled, and the quick start. Times are those of Chromium
on this machine, the best of N tries: from the navigation until the page answers, and from a click on a scope until its
rows are drawn. `MSPC_CHROMIUM` names the browser (see `.ci/run`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.view.command import ViewOptions, view_target
from tests import browser

ROOT = Path(__file__).resolve().parent.parent
READY, OPENS = 2000.0, 100.0
"""Milliseconds at most until a page answers, and until a scope is open."""
OPEN_SCOPE = """path => new Promise(done => {
  const row = document.querySelector(`[data-path="${path}"]`);
  const begin = performance.now();
  row.click();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
})"""
"""From a click to the second frame behind it, which shows what the click has changed."""


@dataclass(frozen=True)
class Network:
    """A page. script: from the checkout. arguments: of it. scopes: that are opened, one in the other. limit: bytes."""

    name: str
    script: str
    ranks: int
    arguments: tuple[str, ...]
    scopes: tuple[str, ...]
    limit: int


LAYERS = "Default/network-Llama/layers-CellList"
NETWORKS = (
    Network(
        "quick start", "samples/quickstart/net.py", 8, (), ("Default/network-WithLossCell/_backbone-Net",), 600_000
    ),
    Network(
        "126 layers, 405B", "benchmarks/networks/llama.py", 8192,
        tuple("126 16384 128 53248 128000 1024 8 1024 2048".split()), (LAYERS, f"{LAYERS}/0-Layer"), 10_000_000,
    ),
)  # fmt: skip


def write(network: Network, page: Path) -> float:
    """Write a network's page; the seconds that it took, the compile's among them."""
    common = CompileOptions(
        ranks=network.ranks, script_arguments=network.arguments, loudness=Loudness(False, True)
    )
    begin = time.perf_counter()
    view_target(str(ROOT / network.script), ViewOptions(common, out=page))
    return time.perf_counter() - begin


def measure(running: Any, network: Network, file: Path) -> tuple[float, float]:
    """(milliseconds until the page answers, those that the slowest scope takes to open)."""
    page = running.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"file://{file}")
    page.wait_for_selector("html[data-ready]")
    drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
    ready = float(page.evaluate(drawn))
    slowest = 0.0
    for path in network.scopes:
        row = page.locator(f'[data-path="{path}"]')
        if row.get_attribute("aria-expanded") == "true":
            row.click()  # it is open from the beginning
        slowest = max(slowest, float(page.evaluate(OPEN_SCOPE, path)))
        assert row.get_attribute("aria-expanded") == "true"
    page.close()
    return ready, slowest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    if reason := browser.why_not():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, browser.browser() as running:
        for network in NETWORKS:
            file = Path(folder) / "page.html"
            seconds = write(network, file)
            found = [measure(running, network, file) for _ in range(tries)]
            ready, opens = (min(column) for column in zip(*found, strict=True))
            print(
                f"{network.name:18} {network.ranks:5} ranks: {file.stat().st_size / 1000:6.0f} kB "
                f"(at most {network.limit / 1000:.0f}), answers in {ready:5.0f} ms (at most {READY:.0f}), "
                f"a scope opens in {opens:4.0f} ms (at most {OPENS:.0f}); compiled and written in {seconds:.0f} s"
            )


if __name__ == "__main__":
    main()

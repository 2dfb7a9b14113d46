"""This program makes the pictures of docs/images anew, from `mspc view`'s pages in Chromium: `make pictures`.

Names of pictures as arguments make only these. `MSPC_CHROMIUM` names the browser (see `.ci/run`); Pillow, of the extra
`data`, stores the pictures in few colours. docs/images/estimates.svg is of `python -m benchmarks.estimates`.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
from tests import browser  # noqa: E402  # the checkout's folder must be known first

COLOURS = 256
WITH_FILES = ("start/ten-minutes.md", "start/ways-to-shard.md", "reference/pipelines.md")
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Picture:
    """A page in one state. script: from the checkout, or a file in docs/. collective: the number of the chosen
    one in the order of the step; None: none is chosen. tab: the view that is shown. size: of the window, in pixels."""

    name: str
    script: str
    ranks: int
    tab: str
    collective: int | None
    size: tuple[int, int] = (1280, 800)


TUTORIAL = (1180, 600)
TRANSFORMER, RESNET = "samples/transformer/net.py", "samples/resnet50_cifar10/resnet50_distributed_training.py"
PICTURES = (
    Picture("view-quickstart", "samples/quickstart/net.py", 8, "network", 2),
    Picture("view-graph", "samples/quickstart/net.py", 8, "graph", 2),
    Picture("view-step", TRANSFORMER, 8, "step", 2, (1280, 620)),
    Picture("view-lesson", TRANSFORMER, 8, "lesson", None, (1280, 720)),
    Picture("view-stages", "staged.py", 8, "step", None, (1280, 620)),
    Picture("view-transformer", TRANSFORMER, 8, "network", 2),
    Picture("view-resnet50", RESNET, 8, "network", 20),
    Picture("view-memory", RESNET, 8, "memory", None, (1280, 720)),
    Picture("ten-minutes", "layer.py", 4, "network", 0, TUTORIAL),
    Picture("tutorial-data", "data.py", 4, "network", 0, TUTORIAL),
    Picture("tutorial-operators", "operators.py", 4, "network", 0, TUTORIAL),
    Picture("tutorial-propagated", "propagated.py", 4, "network", 2, TUTORIAL),
    Picture("tutorial-searched", "searched.py", 4, "network", 0, TUTORIAL),
    Picture("tutorial-optimizer", "optimizer.py", 4, "network", 0, TUTORIAL),
)


def write_page(picture: Picture, folder: Path) -> Path:
    """The page of a picture's network, written to a folder, where it is made once."""
    page = folder / f"{Path(picture.script).stem}-{len(picture.script)}.html"
    if page.exists():
        return page
    script = folder / picture.script
    if not script.exists():
        shutil.copytree((ROOT / picture.script).parent, script.parent)
    if picture.script == RESNET:
        subprocess.run([sys.executable, "make_data.py"], check=True, cwd=script.parent)
    command = [sys.executable, "-m", "mspc", "view", str(script), "--ranks", str(picture.ranks), "--out", str(page)]
    subprocess.run(command, check=True, cwd=script.parent)
    return page


def photograph(picture: Picture, page: Any, file: Path) -> bytes:
    """A page in the picture's state, as a PNG."""
    page.goto("about:blank")
    page.goto(f"file://{file}")
    page.wait_for_selector("html[data-ready]")
    if picture.collective is not None:
        page.locator("role=tab[name='collectives']").click()
        page.locator(".entry").nth(picture.collective).click()
    page.locator(f"role=tab[name='{picture.tab}']").click()
    page.wait_for_timeout(300)
    return bytes(page.screenshot())


def main() -> None:
    """Write the pictures."""
    from PIL import Image

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    if reason := browser.why_not():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, browser.browser() as running:
        for page in WITH_FILES:
            for name, text in FILE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
                (Path(folder) / name).write_text(text, encoding="utf-8")
        for picture in PICTURES:
            if names and picture.name not in names:
                continue
            width, height = picture.size
            page = running.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            content = photograph(picture, page, write_page(picture, Path(folder)))
            page.close()
            few = Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            few.save(ROOT / "docs" / "images" / f"{picture.name}.png", optimize=True)
            print(picture.name)


if __name__ == "__main__":
    main()

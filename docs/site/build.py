"""This program builds the site of docs/ into build/site: `make docs`. A link that leads nowhere ends it with an error.

It needs the extra `docs` (Sphinx with the MyST parser and the theme Furo).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pages import ROOT, all_pages  # beside this file

HERE = Path(__file__).resolve().parent


def build(place: Path) -> int:
    """Write all pages to `place/pages` and the site to `place/site`; the exit status is that of Sphinx."""
    pages, site = place / "pages", place / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    for name, text in all_pages().items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    if (ROOT / "docs" / "images").is_dir():
        shutil.copytree(ROOT / "docs" / "images", pages / "images")
    strict = ["--fail-on-warning", "--keep-going"]
    sphinx = [sys.executable, "-m", "sphinx", "-q", *strict, "-c", str(HERE), "-d", str(place / "state")]
    return subprocess.run([*sphinx, str(pages), str(site)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"))

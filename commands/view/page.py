"""The page is one file of HTML: facts as JSON, the code that shows them, nothing from anywhere else.

Facts are data alone: `<` is escaped in them, so that no text of a dump ends the element that holds it, and the page's
policy lets nothing run but the code that came along, by its digest. Control characters of names are shown as escapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import CONTROL, shown

_ESCAPED = re.compile(rf"\\(?:u[0-9a-f]{{4}}|.)|{CONTROL}")
"""An escape of JSON, or a character that is not shown as it is."""
BUILT = Path(__file__).parent / "page" / "built"
"""Where the code and the styles lie that `page/package.json` builds."""


def html_of(facts: Mapping[str, Any]) -> str:
    """The page."""
    code, styles = (_built(name) for name in ("view.js", "view.css"))
    data = _visible(json.dumps(facts, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
    data = data.replace("<", f"\\u{ord('<'):04x}")
    policy = (
        f"default-src 'none'; script-src {_digest(code)}; style-src {_digest(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(f"{shown(facts['title'])} - mspc view")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{styles}</style>\n</head>\n"
        '<body>\n<div id="page">This page needs JavaScript, which runs from this file alone.</div>\n'
        f'<script type="application/json" id="facts">{data}</script>\n'
        f"<script>{code}</script>\n</body>\n</html>\n"
    )


def _visible(data: str) -> str:
    """JSON in whose texts control characters, and those that turn the direction of writing, stand as their escapes, as
    everywhere that mspc shows names of files; tabs stay, which indent source lines."""
    return _ESCAPED.sub(_as_text, data)


def _as_text(found: re.Match[str]) -> str:
    character = json.loads(f'"{found[0]}"') if found[0].startswith("\\") else found[0]
    text = shown(character, lines=character == "\t")
    return found[0] if text == character else text.replace("\\", "\\\\")


def _built(name: str) -> str:
    return (BUILT / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

"""Tables as a page: one file that loads nothing and runs nothing, whatever its cells contain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from mspc.commands.report.tables import TextTable

SHORT = 24
"""Most characters of cells in a column without line breaks."""
_UNBREAKABLE = re.compile(rf"\([\d, -]{{,{SHORT}}}\)|\[[\d, -]{{,{SHORT}}}\]|->|[\w.]+(?:-[\w.*]+)+")
"""Texts that a browser could break but must not: shapes, layouts, arrows, names of cells."""
_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1b1f24; --quiet: #5b6470; --edge: #d5d9e0; --panel: #f6f7f9;
        --accent: #0b57d0 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --text: #e6e9ee; --quiet: #9aa4b2; --edge: #343b45; --panel: #1c2026; --accent: #8ab4f8 }
}
body { background: var(--page); color: var(--text); font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif;
       margin: 0 auto; max-width: 90rem; padding: 1rem 1.2rem }
h1 { font-size: 1.35rem; margin: .4rem 0; overflow-wrap: anywhere }
h2 { font-size: 1rem; margin: 1.8rem 0 .4rem; overflow-wrap: anywhere }
p { margin: .3rem 0; overflow-wrap: anywhere }
nav { background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; margin: 1rem 0;
      padding: .5rem .9rem }
nav a { color: var(--accent); display: block; overflow-wrap: anywhere; text-decoration: none }
nav a:hover { text-decoration: underline }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid var(--edge); overflow-wrap: break-word; padding: .3rem .7rem; text-align: left;
         vertical-align: top }
th { background: var(--panel); color: var(--quiet); font-size: 13px; position: sticky; top: 0 }
td { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px }
tbody tr:hover { background: var(--panel) }
.number { text-align: right; font-variant-numeric: tabular-nums }
.number, .short, td span { white-space: nowrap }
@media (max-width: 60rem) { .wide { overflow-x: auto } th { position: static } td { min-width: 12rem }
  td.short, td.number { min-width: 0 } }
@media print { :root { color-scheme: light; --page: #fff; --text: #000; --quiet: #333; --edge: #bbb; --panel: #fff }
  body { font-size: 11px; padding: 0 } th { position: static }
  td, th, td.short { font-size: 10px; min-width: 0; overflow-wrap: anywhere; padding: .1rem .4rem; white-space: normal }
  td span { white-space: normal }
  tr { break-inside: avoid } h2 { break-after: avoid } nav { display: none } .wide { overflow: visible } }
"""


def page(title: str, lines: Sequence[str], tables: Sequence[TextTable]) -> str:
    """Return the text of a page with a title, paragraphs and tables. All arguments are text, never markup."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in lines)]
    if len(tables) > 1:
        places = (f'<a href="#table-{i}">{escape(table.title)}</a>' for i, table in enumerate(tables))
        body += ["<nav>", *places, "</nav>"]
    for i, table in enumerate(tables):
        body += _table(i, table)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>", *body, "</body>",
        "</html>", "",
    ])  # fmt: skip


def _table(number: int, table: TextTable) -> Iterator[str]:
    # Numbers are right-aligned, and short texts do not wrap.
    short = [all(len(row[i]) <= SHORT for row in table.rows) for i in range(len(table.columns))]
    kinds = [' class="number"' if i in table.numbers else ' class="short"' * fits for i, fits in enumerate(short)]
    yield f'<section id="table-{number}"><h2>{escape(table.title)}</h2><div class="wide"><table>'
    yield f"<thead>{_row('th', kinds, table.columns)}</thead><tbody>"
    for row in table.rows:
        yield _row("td", kinds, row)
    yield "</tbody></table></div></section>"


def _row(element: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    """Return a row of a table; paths and lists in its cells may wrap."""
    cells = [
        f"<{element}{kind}>{_breakable(text)}</{element}>"
        for kind, text in zip(kinds, texts, strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _breakable(text: str) -> str:
    """Return the markup of a text that wraps after a slash or a space, but not in shapes, short names and arrows."""
    words: list[str] = []
    at = 0
    for found in _UNBREAKABLE.finditer(text):
        words += [escape(text[at : found.start()]).replace("/", "/<wbr>"), f"<span>{escape(found[0])}</span>"]
        at = found.end()
    return "".join((*words, escape(text[at:]).replace("/", "/<wbr>")))

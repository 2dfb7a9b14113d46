"""Tables as a page of their own: one file that loads nothing and runs nothing, whatever stands in its cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from mspc.commands.report.fitting import Table

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 0 0 2rem; width: 100% }
caption { font-weight: bold; padding: .4rem 0; text-align: left }
th, td { border-bottom: 1px solid #8884; overflow-wrap: anywhere; padding: .3rem .6rem; text-align: left;
         vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
td { font-family: ui-monospace, monospace; font-size: 13px }
"""


def page(title: str, lines: Sequence[str], tables: Sequence[Table]) -> str:
    """The text of a page: its title, paragraphs, tables. All of them are text, never markup."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in lines)]
    for table in tables:
        body += _table(table)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>", *body, "</body>",
        "</html>", "",
    ])  # fmt: skip


def _table(table: Table) -> Iterator[str]:
    yield f"<table><caption>{escape(table.title)}</caption>"
    yield f"<thead><tr>{''.join(_cell('th', table, i, text) for i, text in enumerate(table.columns))}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(_cell('td', table, i, text) for i, text in enumerate(row))}</tr>"
    yield "</tbody></table>"


def _cell(kind: str, table: Table, column: int, text: str) -> str:
    number = ' class="number"' if column in table.numbers else ""
    return f"<{kind}{number}>{escape(text)}</{kind}>"

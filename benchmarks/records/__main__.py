"""Records of benchmarks, and the page docs/reference/benchmarks.md that they make.

    python -m benchmarks.records                                # write the page
    python -m benchmarks.records search --machine "two cores"   # run the record's command and store its output

A record is a file NUMBER-NAME.toml with title, command, machine, date, and `text` (Markdown), `output` (of the command
on that date) or both. Commands run in the repository root.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"
HEAD = """# Benchmarks

Measured figures, each with its command, machine and date. `python -m benchmarks.records` writes this page from the
files in `benchmarks/records`; `python -m benchmarks.records NAME --machine "..."` runs a record's command and stores
its output.
"""
FIELDS = ("title", "command", "machine", "date")


def records() -> dict[str, dict[str, str]]:
    """Return the records by name, in the order of their files' numbers."""
    files = sorted(FOLDER.glob("*.toml"))
    return {file.stem.partition("-")[2]: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD, "| figures | command | machine | date |", "|---|---|---|---|"]
    sections = []
    for record in records().values():
        title, command, machine, date = (record[field] for field in FIELDS)
        anchor = title.lower().replace(",", "").replace("'", "").replace(" ", "-")
        lines.append(f"| [{title}](#{anchor}) | `{command}` | {machine} | {date} |")
        parts = [f"## {title}", f"`{command}`: {machine}, {date}.", record.get("text", "").strip()]
        if output := record.get("output", "").strip("\n"):
            parts.append(f"```text\n{output}\n```")
        sections.append("\n\n".join(filter(None, parts)))
    return "\n".join(lines) + "\n\n" + "\n\n".join(sections) + "\n"


def renew(name: str, machine: str) -> None:
    """Run the command of a record and store its output, the machine and today's date. Raise SystemExit if it fails."""
    record = records()[name]
    words = [sys.executable if word == "python" else word for word in shlex.split(record["command"])]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{record['command']} ended with status {done.returncode}; the record is unchanged")
    record |= {"machine": machine, "date": datetime.date.today().isoformat(), "output": done.stdout}
    (file,) = FOLDER.glob(f"[0-9]*-{name}.toml")
    file.write_text("".join(map(_field, record, record.values())), encoding="utf-8")


def _field(key: str, value: str) -> str:
    if "\n" not in value and '"' not in value:
        return f'{key} = "{value}"\n'
    if "'''" in value:
        raise SystemExit(f"the {key} of a record contains ''', which its file cannot hold")
    text = f"\n{value.strip(chr(10))}\n" if "\n" in value else value
    return f"{key} = '''{text}'''\n"


def main() -> None:
    """Renew the records that are named, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--machine", help="the machine on which the commands run; required with a NAME")
    options = parser.parse_args()
    if options.names and not options.machine:
        parser.error("--machine is required with a NAME")
    if unknown := set(options.names) - set(records()):
        parser.error(f"no record is named {', '.join(sorted(unknown))}: the names are {', '.join(records())}")
    for name in options.names:
        renew(name, options.machine)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""docs/reference/names.md is what the index says, and what the index says of names that mspc lacks is so."""

import importlib
from pathlib import Path

import pytest

from docs.site.public_names import DOCUMENT, MODULES, document, lacking, table
from mspc.mindspore_api import index
from mspc.mindspore_api.index.module import absent_names
from mspc.mindspore_api.index.table import rows_of


def test_the_page_is_made_from_the_index(update_goldens: bool) -> None:
    """`--update-goldens` writes it anew."""
    text = document()
    if update_goldens:
        DOCUMENT.write_text(text, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == text


def test_no_name_is_there_that_the_index_calls_absent() -> None:
    there = [name for name in absent_names() if is_there(name)]
    assert there == []


def is_there(name: str) -> bool:
    module, _, own = name.rpartition(".")
    return hasattr(importlib.import_module(f"mspc.{module}".rstrip(".")), own)


def test_what_is_there_is_known_from_what_is_absent() -> None:
    assert is_there("nn.Dense")
    assert is_there("context.set_context")
    assert not is_there("nn.Dens")


def test_a_table_is_made_of_what_mindspore_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"version": "3.0", "": ["Tensor", "nowhere"], "nn": ["Dense"], "log": []}
    (tmp_path / "theirs.txt").write_text(table(names))
    monkeypatch.setattr(index, "__path__", [str(tmp_path)])
    assert {name: row.target for name, row in rows_of("theirs", "lists").items()} == {"mspc": "2 nowhere", "nn": "1"}


def test_the_index_knows_of_every_module() -> None:
    lists = rows_of("mindspore", "lists")
    assert list(lists) == [module or "mspc" for module in MODULES]
    for module, row in lists.items():
        count, *lacked = row.target.split()
        assert len(lacking("" if module == "mspc" else module, [*lacked, "nowhere"])) <= len(lacked) + 1
        assert len(lacked) <= int(count)

"""Choices by time: once for a key, the same on all ranks, and kept for the next start."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mspc.ops.collective.one_rank import OneRank
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import Choices, StoredChoices, file_of

KEY = ("product", 8, (16, 32), True)


def choices(path: Path | None, deterministic: bool = False) -> Choices:
    return Choices(SimpleNamespace(deterministic=deterministic), StoredChoices(path))


def chosen(found: Choices, times: list[float], key: Any = KEY) -> tuple[int, list[int]]:
    """(the choice, which ways were timed)."""
    timed: list[int] = []

    def seconds(number: int) -> float:
        timed.append(number)
        return times[number]

    found.choose(key, len(times), seconds)
    return found[key], timed


def test_the_fastest_is_taken_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "choices.json"
    first = choices(path)
    assert chosen(first, [3.0, 1.0, 2.0]) == (1, [0, 1, 2])
    assert KEY in first
    first.agree(OneRank())
    second = choices(path)
    assert chosen(second, [1.0, 3.0, 2.0]) == (1, [])
    assert chosen(second, [2.0, 1.0], ("another",)) == (1, [0, 1])
    second.agree(OneRank())
    assert len(json.loads(path.read_bytes())) == 2
    assert os.listdir(path.parent) == [path.name]


def test_one_way_alone_is_not_timed(tmp_path: Path) -> None:
    assert chosen(choices(tmp_path / "choices.json"), [1.0]) == (0, [])


def test_a_choice_that_is_there_no_more_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first = choices(path)
    chosen(first, [3.0, 2.0, 1.0])
    first.agree(OneRank())
    assert chosen(choices(path), [2.0, 1.0]) == (1, [0, 1])


DAMAGED = [
    b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"x": 1', b"null", b"[" * 100_000, b'{"KEY": "1"}', b'{"KEY": 7}',
    b'{"KEY": -1}', b'{"KEY": [[0, 1]]}', b'{"KEY": {"0": 1}}', b'{"KEY": null}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:12].decode("latin1"))
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "choices.json"
    whole = choices(path)
    chosen(whole, [2.0, 1.0])
    whole.agree(OneRank())
    (name,) = json.loads(path.read_bytes())
    path.write_bytes(content.replace(b"KEY", name.encode()))
    found = choices(path)
    assert chosen(found, [1.0, 2.0]) == (0, [0, 1])
    found.agree(OneRank())
    assert json.loads(path.read_bytes())[name] == 0


@pytest.mark.parametrize("pairs", [[[0]], [[0, 1], 2], [["a", 1]], [[0, -1]], 5, "ab"], ids=str)
def test_pairs_that_are_none_count_as_missing(tmp_path: Path, pairs: Any) -> None:
    path = tmp_path / "choices.json"
    kept = StoredChoices(path)
    kept.put_pairs(KEY, ((3, 0), (1, 256)))
    kept.save()
    assert StoredChoices(path).pairs(KEY) == ((3, 0), (1, 256))
    (name,) = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: pairs}))
    assert StoredChoices(path).pairs(KEY) is None


def test_what_others_have_written_stays_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choices.json"
    one, other = StoredChoices(path), StoredChoices(path)
    one.put(("one",), 1)
    one.save()
    other.put(("other",), 2)
    other.save()
    assert [StoredChoices(path).get((name,), 9) for name in ("one", "other")] == [1, 2]
    monkeypatch.setattr(choices_module, "MAX_ENTRIES", 2)
    other.put(("third",), 3)
    other.save()
    assert [StoredChoices(path).get((name,), 9) for name in ("one", "other", "third")] == [None, 2, 3]


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = StoredChoices(tmp_path / "file" / "choices.json")
    kept.put(KEY, 1)
    kept.save()
    assert (tmp_path / "file").read_text() == ""


def test_files_are_of_a_kind_of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = file_of(["GPU A", "13.0"]), file_of(["GPU A", "13.1"])
    assert one is not None
    assert one != other
    assert one.parent == tmp_path / "mspc" / "choices"
    assert StoredChoices(None).get(KEY, 3) is None


def test_all_ranks_take_the_choice_of_the_first(tmp_path: Path) -> None:
    def run(comm: LocalComm) -> int:
        found = choices(tmp_path / f"{comm.rank}.json")
        chosen(found, [1.0, 2.0] if comm.rank == 1 else [2.0, 1.0])
        if comm.rank == 2:
            chosen(found, [2.0, 1.0, 0.5], ("own",))
        found.agree(comm)
        return found[KEY]

    assert World(3).run(run) == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_what_is_deterministic_is_not_chosen_by_time() -> None:
    ran: list[int] = []
    launches = [lambda i=i: ran.append(i) for i in range(2)]
    choices(None, deterministic=True).fastest(KEY, launches)()
    assert ran == [0]

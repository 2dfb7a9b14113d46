"""Flight records of jobs that hang: they are read without running anything, and the culprit is named."""

from __future__ import annotations

import json
import pickle
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.explain_hang import explain_records, steps_of
from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.call_log import CallLog, Meeting
from mspc.runtime.faults.formats.plain_pickle import plain_pickle
from mspc.runtime.faults.formats.reading import read_record_file, read_records
from mspc.runtime.faults.record import WORDS
from mspc.runtime.faults.recorded_calls import Record
from tests.runtime.planted_hangs import FAULTS, as_pytorch_writes, outcome
from tests.serving import SERVED
from tests.shares import share_of


def content(number: int = 0, version: str = "2.10") -> dict[str, Any]:
    """A flight record of some calls, with all fields that PyTorch writes."""
    entries = [
        {
            "frames": [
                {"name": "all_reduce", "filename": "/venv/torch/distributed/c10d.py", "line": 3},
                {"name": "step", "filename": "/job/train.py", "line": 7},
            ],
            "record_id": number + i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1,
            "p2p_seq_id": 0, "op_id": i + 1, "profiling_name": "gloo:all_reduce", "time_created_ns": 5 + i,
            "input_sizes": [[4, 3]], "input_dtypes": ["Float"], "output_sizes": [[4, 3]], "output_dtypes": ["Float"],
            "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": True, "timeout_ms": 8000, "is_p2p": False,
        }
        for i in range(3)
    ]  # fmt: skip
    status = {"0": {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 3}}
    return {
        "version": version, "pg_config": {"0": {"name": "0", "desc": "x", "ranks": "[0, 1]"}}, "pg_status": status,
        "entries": entries, "big": 2**70, "none": None, "nested": ((1, 2.5), [True, False], ()),
    }  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_are_decoded(protocol: int) -> None:
    assert plain_pickle(pickle.dumps(content(), protocol)) == content()


def read_record(path: Path, last: int = 0) -> Record:
    (record,) = read_record_file(path, last)
    return record


class Hostile:
    def __reduce__(self) -> Any:
        return print, ("never printed",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps(Hostile(), 2), "is not one of plain data, and is not run"),
        (pickle.dumps(Path("x")), "is not one of plain data, and is not run"),
        (b"\x80\x02X\xff\xff\xff\xffabc.", "a text of 4294967295 bytes at byte 7 is longer than the file"),
        (b"\x80\x02r\xff\xff\xff\xff.", "damaged before byte"),
        (b"\x80\x02}u.", "damaged before byte"), (b"\x80\x02h\x07.", "damaged before byte"),
        (pickle.dumps(content(), 2)[:400], "longer than the file"), (b"\x80\x02", "cut off after 2 bytes"),
    ],
)  # fmt: skip
def test_other_pickles_are_refused(
    tmp_path: Path, data: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(MspcError) as raised:
        read_record(path)
    assert said in raised.value.message
    assert str(path) in raised.value.message
    assert capsys.readouterr().out == ""


def test_a_damaged_record_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a_0").write_bytes(pickle.dumps(content(), 2))
    (tmp_path / "a_1").write_bytes(pickle.dumps(content(), 2)[:100])
    records, wrong = read_records([tmp_path])
    assert [record.rank for record in records] == [0]
    assert [str(tmp_path / "a_1") in each for each in wrong] == [True]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"trace_0": b""}, "is empty: expected flight records"),
        ({"trace_0": b"some text"}, "is no record of a job"),
        ({"trace": json.dumps(content()).encode()}, "its name does not end in the number of a rank"),
        ({"trace_0": json.dumps(content(version="7.1")).encode()}, "of version 7.1; versions 1 and 2 are known"),
        ({"trace_0": b'{"entries": [{"record_id": 1}], "version": "2.1"}'}, "a part is missing or malformed: KeyError"),
        ({"trace_0": b"[1]"}, "it has no list `entries`"),
        ({"a_1": json.dumps(content()).encode(), "b_1": json.dumps(content()).encode()}, "are both of rank 1"),
        ({}, "holds no records"),
    ],
)  # fmt: skip
def test_files_that_are_no_records_are_named(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(MspcError) as raised:
        read_records([tmp_path])
    assert said in raised.value.message
    assert raised.value.exit_status == 2


def test_records_of_json_and_pickles_are_alike(tmp_path: Path) -> None:
    (tmp_path / "a_0").write_text(json.dumps(content(5)))
    (tmp_path / "b_1").write_bytes(pickle.dumps(content(5), 2))
    (one, other), _ = read_records([tmp_path])
    assert (one.calls, one.dropped, one.members) == (other.calls, 5, {"0": (0, 1)})
    assert one.calls[0].place == "/job/train.py:7"


def test_the_last_calls_of_a_large_record_are_read_alone(tmp_path: Path) -> None:
    record = content()
    first = record["entries"]
    record["entries"] = [dict(first[0], record_id=i, collective_seq_id=i + 1) for i in range(300)]
    for i in (150, 298):  # a text that is used in the middle for the first time, and one at the end
        record["entries"][i]["input_dtypes"] = record["entries"][299]["output_dtypes"] = [f"Type{i}"]
    path = tmp_path / "trace_rank_0"
    path.write_bytes(as_pytorch_writes(record))
    whole = read_record(path)
    assert plain_pickle(path.read_bytes()) == record
    part = read_record(path, 10)
    assert (part.calls, part.dropped) == (whole.calls[-10:], 290)
    assert read_record(path, 1000).calls == whole.calls


@pytest.mark.parametrize("with_program", [False, True])
def test_culprits_of_random_jobs_are_found(with_program: bool) -> None:
    found = Counter[bool]()
    lines = Counter[bool]()
    count = share_of(24, 2)
    for seed in range(count):
        answer = outcome(seed, FAULTS[seed % len(FAULTS)], with_program)
        found[answer.is_culprit] += 1
        lines[answer.is_line] += 1
    assert found[True] >= count - 1
    assert lines[True] >= count - 3


@pytest.mark.parametrize(
    ("seed", "fault", "with_program"),
    [
        (70004, "other group", False),  # met where the others have a later call
        (90348, "other group", False),  # a rank alone, and a rank without a record
        (70548, "other group", False),  # ranks wait in it for those that wait for it
        (70061, "exception", False),  # a member of its group has no record, and others have gone on
        (400240, "left out", False),  # two groups wait for each other, and most ranks are in one alone
        (400145, "doubled", False),  # ranks of other stages wait for messages, which are not recorded
        (430126, "dead", False),  # the same, and whole groups wait
        (400289, "doubled", False),  # a rank of another program has no rank beside it
        (70127, "slow", False),  # it has no record
        (90303, "slow", False),  # the same, and others wait for its messages, which are not recorded
        (80351, "slow", False),  # messages hide all delays but the last
        (70214, "dead", False),  # loops of other programs have the same few calls
        (70232, "left out", False),  # one of two ranks, and other programs have the call
        (70570, "swapped", False),  # it has no record, and ranks wait for its message in another line
        (70085, "exception", True),  # the program lacks a call of some steps
        (70253, "exception", True),  # before a message, which is not recorded
        (90125, "exception", True),  # ranks could wait for the messages of each other
        (80238, "dead", True),  # the same, and it has no record
        (70337, "doubled", True),  # others have the same call next
        (150081, "doubled", True),  # no rank alone can have stopped
        (150053, "exception", True),  # calls that are issued ahead have other numbers
        (120157, "exception", True),  # the rank without a record is past the call
    ],
)
def test_the_culprit_and_its_line_are_found(seed: int, fault: str, with_program: bool) -> None:
    found = outcome(seed, fault, with_program)
    assert (found.is_culprit, found.is_line) == (True, True), found.said


def test_the_call_in_which_ranks_disagree_is_open_in_the_record(tmp_path: Path) -> None:
    log, group = CallLog(np.zeros(WORDS, np.int64)), Meeting((0, 1), 3)
    log.begin(group)[1] = 5  # an agreement
    for line, kind in ((3, "AllReduce"), (4, "AllGather")):
        log.say(f"calls {kind} at net.py:{line} with ranks 0-1\nits operands are <Tensor[Float32], (4)>")
        log.begin(group)[1] = 6
        if line == 3:  # the ranks agree
            log.begin(group)[1] = 7
            log.say("")
    log.write(tmp_path / "rank_0.json", None, "")
    calls = [(c.kind, c.number, c.sizes[0], c.place, c.is_over) for c in read_record(tmp_path / "rank_0.json").calls]
    assert calls == [
        ("all_reduce", 2, ((4,),), "net.py:3", True), ("all_gather", 3, ((4,),), "net.py:4", False)
    ]  # fmt: skip


def test_healthy_jobs_are_silent() -> None:
    assert [answer.said for answer in (outcome(seed, "") for seed in range(10)) if not answer.is_silent] == []


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.down = nn.Dense(8, 4)
        self.down.matmul.shard(((1, 2), (1, 2)))
    def construct(self, x):
        return self.down(x)
Net()(Tensor(np.ones([4, 8]), ms.float32))
"""


def test_the_calls_of_a_program_are_its_collectives_with_lines_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    steps = steps_of(tmp_path / "net.py", range(2))
    assert {rank: [(call.kind, call.place) for call in calls] for rank, calls in steps.items()} == {
        rank: [("reduce_scatter", "net.py:11"), ("all_gather", "net.py:11")] for rank in range(2)
    }


def test_the_command_prints_the_culprit_and_who_waits(tmp_path: Path) -> None:
    for rank in range(3):
        record = content()
        record["pg_config"]["0"]["ranks"] = "[0, 1, 2]"
        if rank == 1:
            del record["entries"][2]
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(record, 2))
    page = tmp_path / "hang.html"
    command = [*SERVED, "explain-hang", *map(str, sorted(tmp_path.iterdir())), "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    facts = json.loads(page.read_text().partition('id="facts">')[2].partition("</script>")[0])
    calls = facts["hang"]["calls"]
    assert (calls["begin"], calls["fault"], [row["rank"] for row in calls["rows"]]) == (0, 2, [0, 1, 2])
    assert [len(row["cells"]) for row in calls["rows"]] == [3, 3, 3]
    assert calls["rows"][1]["cells"][2] is None
    assert done.stdout.splitlines()[:2] == [
        "3 records of 2 to 3 calls",
        "rank 1 stopped before all_reduce ((4, 3) Float) at /job/train.py:7",
    ]
    assert "who waits for whom" in done.stdout


def test_two_explanations_of_one_record_are_both_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        record = content()
        del record["entries"][2]
        if rank != 1:
            record["entries"][1]["profiling_name"] = "gloo:all_gather"
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(record, 2))
    assert explain_records([tmp_path], 3, None, None) == 1
    place = "(number 2 of group 0, (4, 3) Float) at /job/train.py:7"
    assert capsys.readouterr().out.splitlines()[:2] == [
        "3 records of 2 calls", f"rank 1 issued all_reduce {place} twice, or left out all_gather ((4, 3) Float) at "
        "/job/train.py:7 before it",
    ]

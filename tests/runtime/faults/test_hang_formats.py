"""Records of hangs in other formats than PyTorch's flight recorder: the culprit is named, and damage is."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.explain_hang import explain_records
from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.culprits import Hang, explain
from mspc.runtime.faults.formats.reading import read_records
from tests.runtime.planted_hangs import Job, as_pytorch_writes, cut

RAS = """
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks   Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8  RUNNING  {errors}

Errors
======

{body}
"""
MISMATCH = """#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 6 has launched up to operation 60 -- GPU 2 managed by process 1650386 on node node1
"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5
"""


def explained(folder: Path, files: dict[str, str]) -> Hang:
    for name, text in files.items():
        (folder / name).write_text(text)
    records, wrong = read_records([folder])
    assert wrong == []
    found = explain(records)
    assert explain_records([folder], 0, None, None) == int(bool(found.explanations))
    return found


def first(found: Hang) -> tuple[int, str]:
    return found.explanations[0].rank, found.explanations[0].fault


def test_the_rank_that_launched_fewer_operations_is_named(tmp_path: Path) -> None:
    found = explained(tmp_path, {"ras.txt": RAS.format(errors="MISMATCH", body=MISMATCH)})
    assert first(found) == (6, "stopped before")
    assert {wait.behind for wait in found.waits} == {(6,)}


def test_the_rank_that_ras_misses_is_named(tmp_path: Path) -> None:
    found = explained(tmp_path, {"ras.txt": RAS.format(errors="INCOMPLETE", body=DEAD)})
    assert first(found) == (5, "no record")
    assert found.missing == (5,)


def test_a_healthy_report_is_silent(tmp_path: Path) -> None:
    assert explained(tmp_path, {"ras.txt": RAS.format(errors="OK", body="")}).explanations == ()


def test_a_json_report_is_as_a_text(tmp_path: Path) -> None:
    ranks = [
        {"rank": rank, "host": "a", "pid": 100 + rank, "cuda_dev": rank,
         "collective_counts": {"AllReduce": 9 - (rank == 1), "Broadcast": 2}}
        for rank in range(3)
    ]  # fmt: skip
    missing = {"rank": 3, "host": "a", "pid": 4, "cuda_dev": 3, "status": {"unresponsive": True}}
    report = {"communicators": [{"hash": "0xa", "size": 3, "ranks": ranks, "missing_ranks": []}]}
    assert first(explained(tmp_path, {"ras.json": json.dumps(report)})) == (1, "stopped before")
    report["communicators"][0] |= {"size": 4, "missing_ranks": [missing]}
    assert explained(tmp_path, {"ras.json": json.dumps(report)}).missing == (3,)


WAITING = "E0213 12:41:17.931882   59040 rendezvous.cc:98] [id={at}] This thread has been waiting for `{name}` for 20 "
WAITING += "seconds and may be stuck. Expected 4 threads to join the rendezvous, but not all of them arrived on time."
KEY = "{kind} RendezvousKey{{run_id=RunId: 7, global_devices=[0, 1, 2, 3], num_local_participants=4, op_id={op}}}"
OLD = "2021-06-01 12:09:19: E xla/collective_ops_utils.h:209] This thread has been waiting for 5000ms for and may be "
OLD += "stuck: participant for device ordinal {rank}, stream 0x5 waiting for all participants to arrive at rendezvous "


def test_the_device_that_does_not_come_to_a_rendezvous_is_named(tmp_path: Path) -> None:
    lines = [OLD.format(rank=rank) + KEY.format(kind="AllReduce", op=534) for rank in (0, 1, 3)]
    found = explained(tmp_path, {"log.txt": "\n".join(["something else", *lines])})
    assert first(found) == (2, "stopped before")
    assert {wait.rank for wait in found.waits} == {0, 1, 3}
    names = [f"acquire clique for rank {at}; clique=devices=[4,5,6,7]; run_id=-15" for at in (0, 1, 2)]
    found = explained(tmp_path, {"log.txt": "\n".join(WAITING.format(at=1, name=name) for name in names)})
    assert first(found) == (7, "stopped before")


def test_the_device_in_another_operation_is_named(tmp_path: Path) -> None:
    lines = [OLD.format(rank=rank) + KEY.format(kind="AllReduce", op=5 + (rank == 3)) for rank in range(4)]
    assert explained(tmp_path, {"log.txt": "\n".join(lines)}).explanations[0].rank == 3


def kineto(rank: int, names: list[str]) -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "python_function", "name": "train.py(9): step", "tid": 1, "ts": 0.0, "dur": 1e6}
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "tid": 1, "ts": 10.0 * i, "dur": 5.0, "args": {
            "Collective name": name, "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
            "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]"}}
        for i, name in enumerate(names)
    ]  # fmt: skip
    groups = [{"pg_name": "0", "ranks": [0, 1, 2]}]
    return {"distributedInfo": {"rank": rank, "pg_config": groups}, "traceEvents": events}


def chakra(names: list[str]) -> dict[str, Any]:
    nodes = [{"id": 1, "name": "## process_group:init ##", "inputs": {"values": ['[{"pg_name": "0", "ranks": [], '
              '"group_size": 3}]']}, "attrs": []}]  # fmt: skip
    nodes += [
        {"id": 2 + i, "name": "record_param_comms", "inputs": {"values": []}, "attrs": [
            {"name": "collective_name", "value": name}, {"name": "pg_name", "value": "0"},
            {"name": "in_msg_nelems", "value": 64}, {"name": "out_msg_nelems", "value": 64},
            {"name": "dtype", "value": "Float"}]}
        for i, name in enumerate(names)
    ]  # fmt: skip
    return {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}


def test_traces_of_the_profiler_are_compared(tmp_path: Path) -> None:
    names = ["allreduce", "_allgather_base", "wait", "allreduce", "broadcast"] * 3
    short = names[:5] + names[6:]
    files = {f"prof_{rank}.json": json.dumps(kineto(rank, short if rank == 1 else names)) for rank in range(3)}
    found = explained(tmp_path, files)
    assert first(found) == (1, "left out")
    assert found.explanations[0].call is not None
    assert found.explanations[0].call.place == "train.py:9"


def test_execution_traces_are_compared(tmp_path: Path) -> None:
    names = ["allreduce", "_allgather_base", "broadcast"] * 3
    files = {f"et_{rank}.json": json.dumps(chakra(names + names[:1] * (rank != 2))) for rank in range(3)}
    assert first(explained(tmp_path, files)) == (2, "stopped before")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Job summary\n", "a report of RAS without communicators"),
        (RAS.format(errors="OK", body=MISMATCH.replace("#0-0", "#9-0")), "has no row with its ranks"),
        (RAS.format(errors="OK", body=MISMATCH.replace("Rank 6", "Rank 99999")), "rank 99999 launched 60 operations"),
        (RAS.format(errors="OK", body=DEAD.replace("rank: 5", "ranks: 5-999999999")), "missing ranks 5-999999999"),
        ('{"communicators": [{"hash": 1, "size": 1e99}]}', "69056 ranks"),
        (
            '{"distributedInfo": {"rank": 0}, "traceEvents": [{"name": "record_param_comms", "ts": "x"}]}',
            "could not convert string to float",
        ),
        ('{"schema": "1", "nodes": [{"id": 1}]}', "a part is missing or malformed: KeyError('name')"),
        ("This thread has been waiting for `x` for 5 seconds", "names no device"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "file_0.json").write_text(text)
    with pytest.raises(MspcError) as raised:
        read_records([tmp_path])
    assert said in raised.value.message
    assert raised.value.exit_status == 2


JOB = {
    "ras.txt": RAS.format(errors="MISMATCH", body=MISMATCH + DEAD).encode(),
    "log.txt": "\n".join(OLD.format(rank=i) + KEY.format(kind="AllReduce", op=5) for i in (0, 1, 3)).encode(),
    "prof_0.json": json.dumps(kineto(0, ["allreduce", "broadcast"] * 3)).encode(),
    "et_0.json": json.dumps(chakra(["allreduce", "broadcast"] * 3)).encode(),
    "trace_0": as_pytorch_writes(cut(Job(2, 2, 1, 4, 2, 1, False, False, True).run(random.Random(0)), 20)[0]),
    "trace_0.json": json.dumps(cut(Job(1, 2, 2, 4, 2, 1, False, False, False).run(random.Random(0)), 20)[0]).encode(),
}
"""A file of each format."""
PARTS = re.compile(rb'-?\d+|"[^"]{0,30}"|null|true|\[[^\[\]]*\]')
WRONG = (b"-1", b"1e999", b"9" * 30, b"9" * 5000, b"null", b"[]", b"{}", b'"x"', b"NaN", b"4294967295", b"[[[]]]")


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Data with parts cut off, removed, repeated, or replaced by other bytes or values."""
    one, other = sorted(draw.randrange(len(data)) for _ in range(2))
    found = draw.choice([match.span() for match in PARTS.finditer(data)] or [(one, one)])
    return draw.choice([
        data[:one], data[:one] + data[one + draw.randrange(60) :], data[:other] + data[one:other] * 9 + data[other:],
        data[:one] + bytes(draw.randrange(256) for _ in range(4)) + data[one + 4 :],
        data[:one] + draw.choice((b"\xff" * 4, b"((((", b"c__builtin__\neval\n", b"R.")) + data[one:],
        data[: found[0]] + draw.choice(WRONG) + data[found[1] :],
    ])  # fmt: skip


@pytest.mark.parametrize("name", JOB)
def test_damaged_records_are_read_or_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(name)
    path = tmp_path / name
    refused: list[str] = []
    for number in range(50):
        path.write_bytes(damaged(draw, JOB[name]))
        try:
            explain_records([path], 0, None, Path("-") if number % 2 else None)
        except MspcError as error:
            refused.append(error.message)
    assert 0 < len(refused) < 50
    assert [message for message in refused if str(path) not in message] == []
    assert len(capsys.readouterr().out) < 1 << 20


def test_records_of_different_jobs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a_0.json").write_text(json.dumps(kineto(0, ["allreduce"])))
    other = kineto(1, ["allreduce"])
    other["distributedInfo"]["pg_config"][0]["ranks"] = [0, 1, 2, 3]
    (tmp_path / "a_1.json").write_text(json.dumps(other))
    with pytest.raises(MspcError, match="are of different jobs: group 0 has ranks"):
        read_records([tmp_path])
    other = kineto(1, ["allreduce"]) | {"baseTimeNanoseconds": 10**18}
    (tmp_path / "a_1.json").write_text(json.dumps(other))
    (tmp_path / "a_0.json").write_text(json.dumps(kineto(0, ["allreduce"]) | {"baseTimeNanoseconds": 10**17}))
    with pytest.raises(MspcError, match="are of different jobs: 250000 h lie between them"):
        read_records([tmp_path])

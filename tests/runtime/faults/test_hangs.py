"""Flight records of jobs that hang: they are read without running anything, and the culprit is named."""

import json
import pickle
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.explain_hang import explain_records, steps_of
from mspc.ir.diagnostics import MspcError
from mspc.runtime.faults.call_log import CallLog, Meeting
from mspc.runtime.faults.culprits import Hang, explain
from mspc.runtime.faults.formats.plain_pickle import plain_pickle
from mspc.runtime.faults.formats.reading import read_record_file, read_records
from mspc.runtime.faults.record import WORDS
from mspc.runtime.faults.recorded_calls import Record
from tests.errors import error_of
from tests.runtime.planted_hangs import FAULTS, Job, as_pytorch_writes, cut, outcome
from tests.serving import SERVED, run_process
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
def test_other_pickles_are_refused(tmp_path: Path, data: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace_rank_0"
    path.write_bytes(data)
    error = error_of(read_record, path)
    assert said in error.message
    assert str(path) in error.message
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
    error = error_of(read_records, [tmp_path])
    assert said in error.message
    assert error.exit_status == 2


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
        (500208, "left out", False),  # a program whose ranks have records of other lengths
        (500269, "exception", False),  # groups of which records have one caller each
        (70548, "other group", False),  # ranks wait in it for those that wait for it
        (70061, "exception", False),  # a member of its group has no record, and others have gone on
        (400240, "left out", False),  # two groups wait for each other, and most ranks are in one alone
        (400145, "doubled", False),  # ranks of other stages wait for messages, which are not recorded
        (400289, "doubled", False),  # a rank of another program has no rank beside it
        (500257, "doubled", False),  # its call comes at once, while others may wait for messages
        (70127, "slow", False), (500055, "slow", False),  # it has no record; nor other groups
        (90303, "slow", False),  # the same, and others wait for its messages, which are not recorded
        (80351, "slow", False),  # messages hide all delays but the last
        (70214, "dead", False),  # loops of other programs have the same few calls
        (70232, "left out", False),  # one of two ranks, and other programs have the call
        (70570, "swapped", False),  # it has no record, and ranks wait for its message in another line
        (70085, "exception", True),  # the program lacks a call of some steps
        (70337, "doubled", True),  # others have the same call next
        (150081, "doubled", True), (150053, "exception", True),  # no rank alone; calls issued ahead have other numbers
        (120157, "exception", True),  # the rank without a record is past the call
    ],
)  # fmt: skip
def test_the_culprit_and_its_line_are_found(seed: int, fault: str, with_program: bool) -> None:
    found = outcome(seed, fault, with_program)
    assert (found.is_culprit, found.is_line) == (True, True), found.said


@pytest.mark.parametrize(("seed", "ranks"), [(70253, ["0", "1"]), (90125, ["26", "30"])])
def test_ranks_that_could_wait_for_messages_of_each_other_are_all_named(seed: int, ranks: list[str]) -> None:
    assert sorted(re.findall(r"by (\d+)", outcome(seed, "exception", with_program=True).said)) == ranks


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
    answers = [outcome(seed, "") for seed in (*range(10), 500028, 500062, 500104)]  # some pause before they send
    assert [answer.said for answer in answers if not answer.is_silent] == []


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
    done = run_process(*SERVED, "explain-hang", *map(str, sorted(tmp_path.iterdir())), "--page", str(page), status=1)
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


def test_two_explanations_of_one_record_are_both_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        record = content()
        del record["entries"][2]
        if rank != 1:
            record["entries"][1]["profiling_name"] = "gloo:all_gather"
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(record, 2))
    assert explain_records([tmp_path], 3, None, None) == 1
    place = "(number 2 of group 0, (4, 3) Float) at /job/train.py:7"
    assert capsys.readouterr().out.splitlines()[:2] == [
        "3 records of 2 calls",
        f"rank 1 issued all_reduce {place} twice, or left out all_gather ((4, 3) Float) at /job/train.py:7 before it",
    ]


TRACE = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/elastic/errors/__init__.py", line 367, in wrapper
    return f(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^
  File "/job/train.py", line {line}, in main
    x = load(step)
{said}
"""
OWN, EFFECT = "ValueError: bad batch", "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
CHAIN = TRACE.format(line=5, said=OWN) + "\nDuring handling of the above exception, another exception occurred:\n\n"
CHAIN += TRACE.format(line=9, said=EFFECT)
SUMMARY = """
E1201 05:56:23.82 9037 torch/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 7)
Failures:
[1]:
  rank      : {other} (local_rank: 0)
  exitcode  : -15 (pid: 9046)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 9046
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 9048)
  error_file: {file}
  traceback : none
"""


def error_file(trace: str, seconds: int = 7) -> str:
    extra = {"py_callstack": trace, "timestamp": str(seconds)}
    return json.dumps({"message": {"message": trace.splitlines()[-1], "extraInfo": extra}})


def with_prefix(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


RAISED = "rank 1 raised ValueError: bad batch at /job/train.py:5 before all_reduce ((4, 3) Float) at /job/train.py:7"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"logs/attempt_0/1/error.json": error_file(TRACE.format(line=5, said=OWN)),
          "logs/attempt_0/0/error.json": error_file(TRACE.format(line=7, said=EFFECT), 3)}, RAISED),
        ({"error_rank_1.json": error_file(CHAIN)}, RAISED),  # a collective in `finally` fails, too
        ({"out.txt": with_prefix("[default1]:[rank1]: ", TRACE.format(line=5, said=OWN))
          + with_prefix("[rank0]: ", TRACE.format(line=7, said=EFFECT))}, RAISED),
        ({"logs/1/stderr.log": TRACE.format(line=5, said=OWN), "logs/0/stderr.log": "some text"}, RAISED),
        ({"out.txt": SUMMARY.format(rank=1, other=0, code=-9, file="<N/A>")}, "rank 1 was killed by SIGKILL before"),
        ({"out.txt": SUMMARY.format(rank=1, other=0, code=7, file="<N/A>")}, "rank 1 exited with status 7 before"),
        # Two hosts: the number of a folder is that of a rank on its host.
        ({"out.txt": SUMMARY.format(rank=1, other=2, code=1, file="a/run/attempt_0/0/error.json"),
          "a/run/attempt_0/0/error.json": error_file(TRACE.format(line=5, said=OWN))}, RAISED),
        ({"slurm.out": "srun: error: node1: task 1: Killed"}, "rank 1 was killed by SIGKILL before"),
        ({"mpi.txt": "prterun noticed that process rank 1 with PID 20960 on node vm exited on\nsignal 11"},
         "rank 1 was killed by SIGSEGV before"),
        ({"error_rank_0.json": error_file(TRACE.format(line=7, said=EFFECT))}, "rank 1 has no record, and others wait"),
    ],
)  # fmt: skip
def test_a_rank_that_dies_is_named_from_files_of_its_launcher(
    tmp_path: Path, files: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 2):
        record = content()
        record["pg_config"]["0"]["ranks"] = "[0, 1, 2]"
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(record, 2))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert explain_records([tmp_path], 3, None, None) == 1
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith(said)], out
    assert err == ""


@pytest.mark.parametrize("has_others", [False, True])
def test_a_call_of_another_size_is_named_with_both_sizes(
    tmp_path: Path, has_others: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1, 2) if has_others else (1,):
        record = content()
        record["entries"] = [dict(record["entries"][0], record_id=i, collective_seq_id=i + 1) for i in range(8)]
        if rank == 1:
            record["entries"][7] |= {"input_sizes": [[5, 3]], "output_sizes": [[5, 3]]}
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(record, 2))
    aborted = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
    aborted += "/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 68 vs 64."
    (tmp_path / "out.txt").write_text(with_prefix("[default0]:", aborted))
    assert explain_records([tmp_path], 3, None, None) == 1
    said = "rank 1 issued all_reduce (number 8 of group 0, (5, 3) Float) at /job/train.py:7 where the size is (4, 3)"
    assert capsys.readouterr().out.splitlines()[1 + (not has_others)].startswith(said)


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


@pytest.mark.parametrize(
    ("errors", "body", "named", "missing"),
    [("MISMATCH", MISMATCH, [(6, "stopped before")], ()), ("INCOMPLETE", DEAD, [(5, "no record")], (5,)),
     ("OK", "", [], ())],
)  # fmt: skip
def test_ranks_in_reports_of_ras_are_named(
    tmp_path: Path, errors: str, body: str, named: list[Any], missing: tuple[int, ...]
) -> None:
    found = explained(tmp_path, {"ras.txt": RAS.format(errors=errors, body=body)})
    assert [(each.rank, each.fault) for each in found.explanations] == named
    assert ({wait.behind for wait in found.waits}, found.missing) == ({(rank,) for rank, _ in named}, missing)


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


def test_traces_are_compared(tmp_path: Path) -> None:
    names = ["allreduce", "_allgather_base", "wait", "allreduce", "broadcast"] * 3
    short = names[:5] + names[6:]
    files = {f"prof_{rank}.json": json.dumps(kineto(rank, short if rank == 1 else names)) for rank in range(3)}
    found = explained(tmp_path, files).explanations[0]
    assert (found.rank, found.fault, found.call and found.call.place) == (1, "left out", "train.py:9")
    for rank in range(3):
        (tmp_path / f"prof_{rank}.json").write_text(json.dumps(chakra(names + names[:1] * (rank != 2))))
    assert first(explained(tmp_path, {})) == (2, "stopped before")


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
    error = error_of(read_records, [tmp_path])
    assert said in error.message
    assert error.exit_status == 2


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

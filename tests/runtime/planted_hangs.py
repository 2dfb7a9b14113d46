"""Jobs with data, tensor and pipeline parallelism in which one rank errs, and their flight records.

`python -m tests.runtime.planted_hangs --count 300` draws jobs, simulates them until all ranks have ended or wait, cuts
the records as PyTorch's ring buffer does, and counts how often `explain` names the culprit and its line, with and
without the program. `--real N` runs N other jobs with gloo, and `--mpi N` with mspc under mpirun. Collectives block;
NCCL's calls are issued ahead of the device; gloo records no messages, groups or states, as PyTorch 2.13 does.
"""

import argparse
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from mspc.runtime.faults.culprits import Hang, explain
from mspc.runtime.faults.formats.flight_recorder import record_of
from mspc.runtime.faults.formats.reading import read_records
from mspc.runtime.faults.recorded_calls import Record, RecordedCall

FAULTS = ("left out", "doubled", "swapped", "other size", "other group", "exception", "dead", "slow")
LINE_FAULTS = FAULTS[:5]
FILE, SECOND = "train.py", 1_000_000_000
GLOO_NAMES = {"reduce_scatter_tensor": "all_reduce", "all_gather_into_tensor": "all_gather"}
"""Kinds that gloo records under the names of others."""
MAX_AHEAD = 24
"""Exclusive upper bound of the calls that NCCL's hosts issue ahead."""
BEGIN = 1_796_000_000 * SECOND


@dataclass(frozen=True)
class Planned:
    """A call of a program. peer: of a message, the other rank. step: from 0, -1 before the first one."""

    group: str
    kind: str
    size: int
    line: int
    peer: int = -1
    step: int = -1

    @property
    def signature(self) -> tuple[str, int]:
        return self.kind, self.size


@dataclass
class Job:
    """A job of dp x tp x pp ranks. fault, rank, at: the culprit's fault, and the call at which it is. pauses: all ranks
    do nothing for a while before each step."""

    dp: int
    tp: int
    pp: int
    steps: int
    layers: int
    micro_batches: int
    sharded: bool
    sequence: bool
    nccl: bool
    fault: str = ""
    rank: int = -1
    at: int = -1
    pauses: bool = False
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def rank(d: int, p: int, t: int) -> int:
            return (d * self.pp + p) * self.tp + t

        axes = range(self.dp), range(self.pp), range(self.tp)
        found = {"world": [tuple(range(self.ranks))]}
        found["tp"] = [tuple(rank(d, p, t) for t in axes[2]) for d in axes[0] for p in axes[1] if self.tp > 1]
        found["dp"] = [tuple(rank(d, p, t) for d in axes[0]) for p in axes[1] for t in axes[2] if self.dp > 1]
        found["pp"] = [tuple(rank(d, p, t) for p in axes[1]) for d in axes[0] for t in axes[2] if self.pp > 1]
        named = [(axis, ranks) for axis, lists in found.items() for ranks in lists]
        self.groups = {str(i): ranks for i, (_, ranks) in enumerate(named)}
        self.of_axis = {(axis, rank): str(i) for i, (axis, ranks) in enumerate(named) for rank in ranks}

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def program(self, rank: int) -> list[Planned]:
        """The calls of a rank, with the fault."""
        dp = self.of_axis.get(("dp", rank), "")
        calls = [Planned("0", "broadcast", 10 + i, 8) for i in range(self.layers)] if dp else []
        calls.append(Planned("0", "barrier", 0, 9))
        for step in range(self.steps):
            calls += [replace(call, step=step) for call in self._step(rank, step, dp)]
        return list(self._faulty(calls)) if rank == self.rank else calls

    def _step(self, rank: int, step: int, dp: str) -> Iterator[Planned]:
        tp, pp = self.of_axis.get(("tp", rank), ""), self.of_axis.get(("pp", rank), "")
        stage = rank // self.tp % self.pp
        for backward in (False, True):
            before, after = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
            first = 20 * backward
            for _ in range(self.micro_batches):
                if 0 <= before < self.pp:
                    yield Planned(pp, f"recv {stage}<-{before}", 64, first + 21, rank + (before - stage) * self.tp)
                if tp and stage == 0 and not backward:
                    yield Planned(tp, "all_reduce", 96, 20)
                for layer in range(self.layers):
                    if dp and self.sharded:
                        yield Planned(dp, "all_gather_into_tensor", 48 + layer % 2, first + 22)
                    if tp and self.sequence:
                        yield Planned(tp, "all_gather_into_tensor", 64, first + 23)
                        yield Planned(tp, "reduce_scatter_tensor", 64, first + 25)
                    elif tp:
                        yield Planned(tp, "all_reduce", 64, first + 24)
                        yield Planned(tp, "all_reduce", 64, first + 26)
                if tp and stage == self.pp - 1 and not backward:
                    yield Planned(tp, "all_reduce", 1, 31)
                if 0 <= after < self.pp:
                    yield Planned(pp, f"send {stage}->{after}", 64, first + 32, rank + (after - stage) * self.tp)
        for layer in range(self.layers if dp else 0):
            yield Planned(dp, "reduce_scatter_tensor" if self.sharded else "all_reduce", 128 + layer, 60)
        if tp:
            yield Planned(tp, "all_reduce", 2, 64)
        yield Planned("0", "all_reduce", 1, 66)
        if step % 4 == 3:
            yield Planned("0", "all_reduce", 3, 70)

    def _faulty(self, calls: list[Planned]) -> Iterator[Planned]:
        for i, call in enumerate(calls):
            if self.fault == "swapped" and i in (self.at, self.at + 1):
                yield calls[2 * self.at + 1 - i]
            elif i == self.at and self.fault in ("exception", "dead"):
                return
            elif i == self.at and self.fault == "left out":
                continue
            elif i == self.at and self.fault == "other size":
                yield replace(call, size=call.size + 3)
            elif i == self.at and self.fault == "other group":
                yield replace(call, group=next(n for n, r in self.groups.items() if self.rank in r and n != call.group))
            else:
                yield call
                if i == self.at and self.fault == "doubled":
                    yield call

    def run(self, draw: random.Random) -> list[dict[str, Any]]:
        """The flight records of all ranks when all have ended or wait."""
        return Simulation(self, draw).records()


class Simulation:
    """A run of a job. `issued` has (call, number, created, ended) of each rank. NCCL sends without waiting; a send of
    gloo waits for its receiver."""

    def __init__(self, job: Job, draw: random.Random) -> None:
        self.job = job
        self.draw = draw
        self.programs = [deque(job.program(rank)) for rank in range(job.ranks)]
        self.clocks = [draw.randrange(SECOND // 100) for _ in self.programs]
        self.issued: list[list[list[Any]]] = [[] for _ in self.programs]
        self.counts: list[Counter[str]] = [Counter() for _ in self.programs]
        self.waits: list[int | None] = [None] * job.ranks
        self.meetings: dict[tuple[str, int], dict[int, Planned]] = {}
        self.sent: dict[tuple[int, int], deque[int]] = {}
        moved = True
        while moved:
            moved = sum([self._advance(rank) for rank in range(job.ranks)]) > 0
        if job.nccl:
            for rank in range(job.ranks):
                self._issue_ahead(rank)

    def _issue(self, rank: int, call: Planned, moment: int) -> list[Any]:
        kind = call.group + "p" * (call.peer >= 0)
        self.counts[rank][kind] += 1
        entry = [call, self.counts[rank][kind], moment, 0]
        self.issued[rank].append(entry)
        return entry

    def _advance(self, rank: int) -> bool:
        moved = False
        while self.programs[rank] and self.waits[rank] is None:
            call = self.programs[rank].popleft()
            moved = True
            self.clocks[rank] += self.draw.randrange(1, SECOND // 100)
            if self.job.fault == "slow" and rank == self.job.rank and len(self.issued[rank]) >= self.job.at:
                self.clocks[rank] += 2 * SECOND
            if self.job.pauses and self.issued[rank] and call.step > self.issued[rank][-1][0].step:
                self.clocks[rank] += 3 * SECOND
            entry = self._issue(rank, call, self.clocks[rank])
            if call.kind.startswith("send") and self.job.nccl:
                self.sent.setdefault((rank, call.peer), deque()).append(self.clocks[rank])
                entry[3] = self.clocks[rank]
            else:
                self.waits[rank] = len(self.issued[rank]) - 1
        return self._arrive(rank) or moved

    def _arrive(self, rank: int) -> bool:
        """End the call in which a rank waits, if it can end."""
        if self.waits[rank] is None:
            return False
        entry = self.issued[rank][self.waits[rank]]
        call, number = entry[:2]
        here = {rank: call}
        if call.peer >= 0 and self.job.nccl:
            if not self.sent.get((call.peer, rank)):
                return False
            self.clocks[rank] = max(self.clocks[rank], self.sent[call.peer, rank].popleft())
        elif call.peer >= 0:
            at = self.waits[call.peer]
            here[call.peer] = call if at is None else self.issued[call.peer][at][0]
            if here[call.peer].peer != rank or here[call.peer].kind[:4] == call.kind[:4]:
                return False
        else:
            here = self.meetings.setdefault((call.group, number), {})
            here[rank] = call
            same = len({each.signature for each in here.values()}) == 1
            if not same or len(here) < len(self.job.groups[call.group]):
                return False
        end = max(self.clocks[other] for other in here)
        for other in here:
            self.issued[other][self.waits[other]][3] = end
            self.waits[other], self.clocks[other] = None, end
        return True

    def _issue_ahead(self, rank: int) -> None:
        """Issue the calls up to the end of the step, for which the host waits for the device, or until the queue of the
        device is full: it holds about a thousand kernels."""
        if self.waits[rank] is None:
            return
        most = len(self.issued[rank]) + self.draw.randrange(MAX_AHEAD)
        moment, last = self.clocks[rank], self.issued[rank][-1][0]
        while self.programs[rank] and last.line != 66 and len(self.issued[rank]) < most:
            last = self.programs[rank].popleft()
            moment += 1000
            self._issue(rank, last, moment)

    def records(self) -> list[dict[str, Any]]:
        return [self._record(rank) for rank in range(self.job.ranks)]

    def _record(self, rank: int) -> dict[str, Any]:
        nccl = self.job.nccl
        shown = [entry for entry in self.issued[rank] if nccl or entry[0].peer < 0]
        own = {name: ranks for name, ranks in self.job.groups.items() if rank in ranks}
        config = {name: {"name": name, "desc": "x", "ranks": str(list(ranks))} for name, ranks in own.items()}
        return {
            "version": "2.10",
            "pg_config": config if nccl else {"": {"name": "", "desc": "", "ranks": "[]"}},
            "comm_lib_version": "",
            "pg_status": {},
            "entries": [self._entry(rank, i, *entry) for i, entry in enumerate(shown)],
        }

    def _entry(self, rank: int, index: int, call: Planned, number: int, created: int, ended: int) -> dict[str, Any]:
        nccl, message = self.job.nccl, call.peer >= 0
        function = "backward" if 40 <= call.line < 60 else "forward" if 20 <= call.line < 40 else "step"
        lines = [("/venv/torch/distributed/distributed_c10d.py", "all_reduce", 3245), (FILE, function, call.line)]
        lines += [(FILE, "train", 90 + (call.line >= 60)), (FILE, "<module>", 99)]
        states = ["scheduled", "started" if self.waits[rank] == index else "scheduled", "completed"]
        state = states[nccl + (nccl and bool(ended))]
        return {
            "frames": [{"name": name, "filename": file, "line": line} for file, name, line in lines],
            "record_id": index,
            "pg_id": int(call.group.lstrip("G")),
            "process_group": (call.group, "x"),
            "thread_name": "python",
            "thread_id": "1",
            "collective_seq_id": self.counts[rank][call.group] if message else number,
            "p2p_seq_id": number if message else 0,
            "op_id": number,
            "profiling_name": f"nccl:{call.kind}" if nccl else f"gloo:{GLOO_NAMES.get(call.kind, call.kind)}",
            "time_created_ns": BEGIN + created,
            "input_sizes": [[call.size]] if call.size else [],
            "input_dtypes": ["Float"] if call.size else [],
            "output_sizes": [[call.size]] if call.size else [],
            "output_dtypes": ["Float"] if call.size else [],
            "state": state,
            "time_discovered_started_ns": BEGIN + created if nccl and state != "scheduled" else None,
            "time_discovered_completed_ns": BEGIN + ended if nccl and ended else None,
            "retired": bool(ended),
            "timeout_ms": 600000,
            "is_p2p": message,
        }


def cut(records: Sequence[dict[str, Any]], entries: int) -> list[dict[str, Any]]:
    """The records with the last entries alone."""
    return [{**record, "entries": record["entries"][-entries:]} for record in records]


def random_job(draw: random.Random, fault: str) -> Job:
    """A job with a fault at a random call of a random rank, after its first two steps."""
    while True:
        dp, tp, pp = (draw.choice((1, 2, 4)) for _ in range(3))
        if not 4 <= dp * tp * pp <= 32:
            continue
        job = Job(
            dp, tp, pp, draw.randrange(4, 12), draw.randrange(2, 6), draw.randrange(1, 5),
            draw.random() < 0.5, draw.random() < 0.5, draw.random() < 0.5,
        )  # fmt: skip
        if not fault:
            return replace(job, pauses=draw.random() < 0.5)
        for _ in range(50):
            rank = draw.randrange(job.ranks)
            calls = job.program(rank)
            at = draw.randrange(next(i for i, call in enumerate(calls) if call.step == 2), len(calls) - 2)
            if _is_possible(fault, calls[at], calls[at + 1], job, rank):
                return replace(job, fault=fault, rank=rank, at=at)


def _is_possible(fault: str, one: Planned, other: Planned, job: Job, rank: int) -> bool:
    if fault in LINE_FAULTS and one.peer >= 0:
        return False
    if fault == "swapped":
        return other.peer < 0 and one.group == other.group and one.signature != other.signature
    return fault != "other group" or sum(rank in ranks for ranks in job.groups.values()) > 1


def step_of(job: Job, rank: int) -> list[RecordedCall]:
    """The calls of a step, as a program has them."""
    calls = [call for call in replace(job, fault="", rank=-1, steps=1).program(rank) if call.step == 0]
    found: list[RecordedCall] = []
    for call in calls:
        kind = call.kind
        if call.peer >= 0:
            kind = f"send {rank}->{call.peer}" if kind.startswith("send") else f"recv {rank}<-{call.peer}"
        found.append(RecordedCall("", 0, kind, (), (), (f"/net/{FILE}:{call.line}",), call.peer >= 0, False, 0, 0))
    return found


@dataclass(frozen=True)
class Outcome:
    """The explanation of a random job, and whether it, the culprit and the line are right."""

    said: str
    job: Job
    is_silent: bool
    is_culprit: bool
    is_line: bool
    in_three: bool


def drawn(seed: int, fault: str) -> tuple[Job, list[dict[str, Any]], list[int], random.Random]:
    """(job, records, ranks of the records, generator) of a seed."""
    draw = random.Random(f"{seed} {fault}")
    job = random_job(draw, fault)
    records = cut(job.run(draw), draw.choice((50, 200, 2000)))
    missing = draw.randrange(job.ranks) if draw.random() < 1 / 3 else -1
    if fault == "dead":
        missing = job.rank
    ranks = [rank for rank in range(job.ranks) if rank != missing]
    return job, [records[rank] for rank in ranks], ranks, draw


def outcome(seed: int, fault: str, with_program: bool = False) -> Outcome:
    """The explanation of a random job."""
    job, contents, ranks, _ = drawn(seed, fault)
    records = [record_of(rank, Path(f"trace_{rank}"), each) for rank, each in zip(ranks, contents, strict=True)]
    steps = {rank: step_of(job, rank) for rank in range(job.ranks)} if with_program else None
    return judged(job, records, explain(records, job.ranks, steps))


def judged(job: Job, records: list[Record], found: Hang) -> Outcome:
    if not found.explanations:
        return Outcome("nothing", job, True, False, False, False)
    planned = replace(job, rank=-1).program(job.rank)[job.at] if job.fault else None
    first = found.explanations[0]
    said = "; ".join(f"{e.fault} by {e.rank} at {e.call.place if e.call else ''}" for e in found.explanations)
    line = first.call.place if first.call is not None else ""
    is_line = job.fault in ("slow", "dead") or (planned is not None and line.endswith(f"{FILE}:{planned.line}"))
    if first.fault in ("swapped", "doubled or left out") and first.expected is not None and planned is not None:
        is_line |= first.expected.place.endswith(f"{FILE}:{planned.line}")
    if not job.nccl and planned is not None and planned.peer >= 0:
        is_line = True  # gloo records no messages
    return Outcome(said, job, False, first.rank == job.rank, is_line, job.rank in {e.rank for e in found.explanations})


STATEMENTS = {
    "all_reduce": "dist.all_reduce(torch.ones(size), group=group)",
    "all_gather_into_tensor": "dist.all_gather_into_tensor(torch.ones(size * count), torch.ones(size), group=group)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(torch.ones(size), torch.ones(size * count), group=group)",
    "broadcast": "dist.broadcast(torch.ones(size), 0, group=group)",
    "barrier": "dist.barrier(group=group)",
    "send": "dist.send(torch.ones(size), peer)",
    "recv": "dist.recv(torch.ones(size), peer)",
}
"""A call of each kind in a script."""
MSPC_STATEMENTS = {
    "all_reduce": "ops.AllReduce(group=group)(ones(size))",
    "all_gather_into_tensor": "ops.AllGather(group=group)(ones(size))",
    "reduce_scatter_tensor": "ops.ReduceScatter(group=group)(ones(size * count))",
    "broadcast": "ops.Broadcast(0, group=group)((ones(size),))",
    "barrier": "ops.AllReduce(group=group)(ones(size))",
    "send": "ops.Send(0, peer)(ones(size))",
    "recv": "ops.Receive(0, peer, [size], ms.float32)(ones(size))",
}
MSPC_MAIN = """
import json, os, signal
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import create_group, get_rank, init

ones = lambda size: Tensor(np.ones([size]), ms.float32)
init()
with open("plan.json") as file:
    plan = json.load(file)
for name, ranks in plan["groups"].items():
    if get_rank() in ranks:
        create_group(name, ranks)
for line, size, group, peer in plan["calls"][get_rank()]:
    call(line, size, group, len(plan["groups"][group]), peer)
if get_rank() == plan["dead"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""
MPI_FAULTS = tuple(fault for fault in FAULTS if fault != "slow")
"""Faults that end a job of mspc; it writes no records for a slow one."""


def script_of(job: Job, header: str, statements: Mapping[str, str]) -> str:
    """A script in which each call of a job is at its line."""
    lines = [header] + ["    pass"] * 98
    for rank in range(job.ranks):
        for call in job.program(rank):
            kind = call.kind.partition(" ")[0]
            lines[call.line - 1] = f"    if line == {call.line}: {statements[kind]}"
    return "\n".join(lines) + "\n"


def run_with_mpi(job: Job, folder: Path) -> None:
    """Run a job with mspc under mpirun, which writes records to `hang_records`."""
    (folder / FILE).write_text(script_of(job, "def call(line, size, group, count, peer):", MSPC_STATEMENTS) + MSPC_MAIN)
    calls = [
        [[call.line, max(call.size, 1), f"g{call.group}", call.peer] for call in job.program(rank)]
        for rank in range(job.ranks)
    ]
    groups = {f"g{name}": ranks for name, ranks in job.groups.items()}
    dead = job.rank if job.fault == "dead" else -1
    (folder / "plan.json").write_text(json.dumps({"groups": groups, "calls": calls, "dead": dead}))
    command = [sys.executable, "-m", "mspc", "run", FILE, "--ranks", str(job.ranks), "--timeout", "8"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not (folder / "hang_records").is_dir():
        print(done.stderr[-1500:])


def run_with_gloo(job: Job, folder: Path, seconds: float = 3) -> None:
    """Run a job with gloo in processes of its own, which write flight records to `records`, and to `logs` error files
    and stderr as torchrun does. A rank with an exception raises it before its call; a dead one writes nothing."""
    import torch
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    script = folder / FILE
    script.write_text(script_of(job, "def call(dist, torch, line, size, group, count, peer):", STATEMENTS))
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    (folder / "records").mkdir()
    children = []
    for rank in range(job.ranks):
        own = folder / "logs" / "attempt_0" / str(rank)
        own.mkdir(parents=True)
        if child := os.fork():
            children.append(child)
            continue
        os.dup2(os.open(own / "stderr.log", os.O_WRONLY | os.O_CREAT), 2)
        has_failed = False
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            limit = timedelta(seconds=seconds)
            store = f"file://{folder}/store"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=job.ranks, timeout=limit)
            groups = {name: dist.new_group(list(ranks), timeout=limit) for name, ranks in job.groups.items()}
            for i, call in enumerate(job.program(rank)):
                if job.fault == "slow" and rank == job.rank and i >= job.at:
                    time.sleep(1.5)
                count = len(job.groups[call.group])
                names["call"](dist, torch, call.line, max(call.size, 1), groups[call.group], count, call.peer)
            if (job.fault, rank) == ("exception", job.rank):
                raise ValueError("a planted exception")
            if (job.fault, rank) == ("dead", job.rank):
                os.kill(os.getpid(), signal.SIGKILL)
        except Exception as error:  # the others fail, too
            has_failed = True
            os.environ["TORCHELASTIC_ERROR_FILE"] = str(own / "error.json")
            ErrorHandler().record_exception(error)
        finally:
            data = torch._C._distributed_c10d._dump_fr_trace()
            (folder / "records" / f"trace_rank_{rank}").write_bytes(data)
            os._exit(has_failed)
    lines = []
    for _ in children:
        child, status = os.wait()
        if code := os.waitstatus_to_exitcode(status):
            lines.append(f"failed (exitcode: {code}) local_rank: {children.index(child)} (pid: {child})")
    (folder / "logs" / "out.txt").write_text("\n".join(lines[:1]) + "\n")  # torchrun ends the others then


def can_run(job: Job, is_mpi: bool) -> bool:
    """Return whether a job is small enough, its fault is one, and records have its calls: gloo's have no messages."""
    if job.ranks > (4 if is_mpi else 8) or job.nccl or job.steps > 6:
        return False
    if is_mpi:  # groups of the same ranks are one
        return job.fault != "other group" or len({*job.groups.values()}) > 1
    return job.pp < job.ranks


def real_outcomes(seed: int, fault: str, is_mpi: bool, with_program: bool) -> list[Outcome]:
    """The explanations of a random job that has run with mspc under mpirun, or with gloo: then from the flight records,
    and from the files of the launcher, too."""
    draw = random.Random(f"{seed} {fault} gloo")
    while not can_run(job := random_job(draw, fault), is_mpi):
        pass
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (run_with_mpi if is_mpi else run_with_gloo)(job, folder)
        most, missing = draw.choice((50, 200, 2000)), draw.randrange(3 * job.ranks)
        own = [path for path in (folder / "hang_records", folder / "records") if path.is_dir()]
        found: list[Outcome] = []
        for paths in [own] if is_mpi else [own, [*own, folder / "logs"]]:
            records = read_records(paths)[0] if paths else []
            if sum(bool(record.calls) for record in records) < job.ranks:
                missing = -1
            cut_records = [
                record._replace(calls=record.calls[-most:], dropped=max(len(record.calls) - most, 0))
                if record.rank != missing else record._replace(calls=())
                for record in records if record.rank != missing or record.end is not None
            ]  # fmt: skip
            steps = {rank: step_of(job, rank) for rank in range(job.ranks)} if with_program else None
            found.append(judged(job, cut_records, explain(cut_records, job.ranks, steps)))
        return found


def as_pytorch_writes(value: Any) -> bytes:
    """A pickle with PyTorch's opcodes: texts and frames are numbered, other dictionaries and lists are not."""
    numbers: dict[Any, int] = {}

    def written(each: Any) -> bytes:
        if isinstance(each, dict):
            key = tuple(each.values()) if "filename" in each else None
            if key in numbers:
                return b"h" + bytes([numbers[key]])
            data = b"}(" + b"".join(written(part) for pair in each.items() for part in pair) + b"u"
            if key is not None:
                numbers[key] = len(numbers)
            return data + b"q" + bytes([numbers[key]]) if key is not None else data
        if isinstance(each, list):
            return b"](" + b"".join(map(written, each)) + b"e"
        if isinstance(each, tuple):
            return b"(" + b"".join(map(written, each)) + b"t"
        if not isinstance(each, str):
            return pickle.dumps(each, 2)[2:-1]
        if each in numbers:
            return b"h" + bytes([numbers[each]])
        numbers[each] = len(numbers)
        return b"X" + len(each).to_bytes(4, "little") + each.encode() + b"q" + bytes([numbers[each]])

    return b"\x80\x02" + written(value) + b"."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--real", type=int, default=0, help="jobs that run with gloo")
    parser.add_argument("--mpi", type=int, default=0, help="jobs that run with mspc under mpirun")
    parser.add_argument("--program", choices=("without", "with", "both"), default="both")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    options = parser.parse_args()
    if options.real or options.mpi:
        kinds, right = MPI_FAULTS if options.mpi else FAULTS, 0
        for number in range(options.first, options.first + (options.real or options.mpi)):
            fault, with_program = kinds[number % len(kinds)], options.program == "with"
            found = real_outcomes(number, fault, bool(options.mpi), with_program)
            each = found[-1]
            right += each.is_culprit
            answer = ", ".join(
                "right" if each.is_culprit and each.is_line else "wrong line" if each.is_culprit else "wrong"
                for each in found
            )
            job = each.job
            planned = replace(job, rank=-1).program(job.rank)[job.at]
            print(f"{number} {job.dp}x{job.tp}x{job.pp} {job.fault} of {job.rank}, {planned}, {answer}: {each.said}",
                  flush=True)  # fmt: skip
        return int(right < 0.9 * (options.real or options.mpi))
    is_right = True
    with ProcessPoolExecutor(options.jobs) as pool:
        for with_program in {"without": (False,), "with": (True,), "both": (False, True)}[options.program]:
            begin = time.perf_counter()
            seeds = range(options.first, options.first + options.count)
            faults = [FAULTS[number % len(FAULTS)] for number in range(options.count)]
            found = list(pool.map(partial(outcome, with_program=with_program), seeds, faults))
            culprits, lines = (sum(getattr(each, name) for each in found) for name in ("is_culprit", "is_line"))
            three = sum(each.in_three for each in found)
            print(
                f"{'with' if with_program else 'without'} the program: culprit {culprits / len(found):.1%}, line "
                f"{lines / len(found):.1%}, culprit among three {three / len(found):.1%} of {len(found)} jobs, "
                f"{time.perf_counter() - begin:.0f} s",
                flush=True,
            )
            is_right &= culprits >= (0.99 if with_program else 0.95) * len(found) and lines >= 0.95 * len(found)
            for number, each in enumerate(found):
                if options.show and not (each.is_culprit and each.is_line):
                    job = each.job
                    size = f"{job.dp}x{job.tp}x{job.pp} {'nccl' if job.nccl else 'gloo'}"
                    planned = replace(job, rank=-1).program(job.rank)[job.at]
                    print(f"  {options.first + number} {size} {job.fault} of {job.rank}, {planned}: {each.said}")
        healthy = list(pool.map(partial(outcome, fault=""), range(options.first, options.first + options.count // 3)))
        loud = [each.said for each in healthy if not each.is_silent]
        print(f"healthy jobs: {len(healthy) - len(loud)} of {len(healthy)} silent", *loud, sep="\n  ")
    return int(not is_right or bool(loud))


if __name__ == "__main__":
    sys.exit(main())

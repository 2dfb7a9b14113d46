"""Simulated jobs with data, tensor and pipeline parallelism in which one rank does something else."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mspc.runtime.faults.culprits import explain
from mspc.runtime.faults.flight_records import Record, RecordedCall

FAULTS = ("left out", "doubled", "swapped", "other size", "other group", "exception", "dead", "slow")
FILE = "train.py"
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Planned:
    """A call of a program. peer: of a message, the other rank."""

    group: str
    kind: str
    size: int
    line: int
    peer: int = -1


@dataclass
class Job:
    """A job of dp x tp x pp ranks. fault, rank, at: what the culprit does, and at which of its calls."""

    dp: int
    tp: int
    pp: int
    steps: int
    layers: int
    micro_batches: int
    fault: str = ""
    rank: int = -1
    at: int = -1
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def rank(d: int, p: int, t: int) -> int:
            return (d * self.pp + p) * self.tp + t

        axes = range(self.dp), range(self.pp), range(self.tp)
        found = [tuple(range(self.ranks))]
        found += [tuple(rank(d, p, t) for t in axes[2]) for d in axes[0] for p in axes[1] if self.tp > 1]
        found += [tuple(rank(d, p, t) for d in axes[0]) for p in axes[1] for t in axes[2] if self.dp > 1]
        found += [tuple(rank(d, p, t) for p in axes[1]) for d in axes[0] for t in axes[2] if self.pp > 1]
        self.groups = {str(i): ranks for i, ranks in enumerate(found)}

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def _group(self, rank: int, size: int, first: int) -> str:
        return next(n for n, ranks in self.groups.items() if rank in ranks and len(ranks) == size and int(n) >= first)

    def program(self, rank: int) -> list[Planned]:
        """The calls of a rank, with the fault."""
        stage = rank // self.tp % self.pp
        first = 1
        tp = self._group(rank, self.tp, first) if self.tp > 1 else ""
        first += self.dp * self.pp if self.tp > 1 else 0
        dp = self._group(rank, self.dp, first) if self.dp > 1 else ""
        first += self.pp * self.tp if self.dp > 1 else 0
        pp = self._group(rank, self.pp, first) if self.pp > 1 else ""
        calls: list[Planned] = []
        for _ in range(self.steps):
            for _ in range(self.micro_batches):
                if stage:
                    calls.append(Planned(pp, f"recv {stage}<-{stage - 1}", 64, 10, rank - self.tp))
                for layer in range(self.layers if tp else 0):
                    calls.append(Planned(tp, "all_reduce", 64, 20))
                    if layer % 2:
                        calls.append(Planned(tp, "all_gather_into_tensor", 32, 23))
                if stage < self.pp - 1:
                    calls.append(Planned(pp, f"send {stage}->{stage + 1}", 64, 30, rank + self.tp))
            for layer in range(self.layers if dp else 0):
                calls.append(Planned(dp, "all_reduce", 128 + layer, 40))
            calls.append(Planned("0", "all_reduce", 1, 50))
        if rank == self.rank:
            calls = list(self._faulty(calls))
        return calls

    def _faulty(self, calls: list[Planned]) -> Iterator[Planned]:
        for i, call in enumerate(calls):
            if self.fault == "swapped" and i == self.at:
                yield calls[i + 1]
            elif self.fault == "swapped" and i == self.at + 1:
                yield calls[i - 1]
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

    def run(self, draw: random.Random) -> list[Record]:
        """The records of all ranks when all have ended or wait."""
        programs = [deque(self.program(rank)) for rank in range(self.ranks)]
        clocks = [draw.randrange(SECOND // 100) for _ in programs]
        calls: list[list[RecordedCall]] = [[] for _ in programs]
        counts: list[Counter[str]] = [Counter() for _ in programs]
        waiting: list[tuple[str, int] | None] = [None] * self.ranks
        meetings: dict[tuple[str, int], dict[int, Planned]] = {}
        sent: dict[tuple[int, int], deque[int]] = {}
        moved = True
        while moved:
            moved = False
            for rank, program in enumerate(programs):
                while program and waiting[rank] is None:
                    call = program[0]
                    if call.kind.startswith("recv") and not sent.get((call.peer, rank)):
                        break
                    program.popleft()
                    moved = True
                    clocks[rank] += draw.randrange(1, SECOND // 100)
                    if self.fault == "slow" and rank == self.rank and len(calls[rank]) >= self.at:
                        clocks[rank] += 2 * SECOND
                    message = call.peer >= 0
                    counts[rank][call.group + "p" * message] += 1
                    number = counts[rank][call.group + "p" * message]
                    shape = ((call.size,),)
                    calls[rank].append(RecordedCall(
                        call.group, number, call.kind, (shape, shape), ("Float", "Float"), (f"{FILE}:{call.line}",),
                        message, False, clocks[rank], 0,
                    ))  # fmt: skip
                    if call.kind.startswith("send"):
                        sent.setdefault((rank, call.peer), deque()).append(clocks[rank])
                    elif message:
                        clocks[rank] = max(clocks[rank], sent[call.peer, rank].popleft())
                    if message:
                        calls[rank][-1] = calls[rank][-1]._replace(is_over=True)
                    else:
                        here = meetings.setdefault((call.group, number), {})
                        here[rank] = call
                        waiting[rank] = call.group, number
                        same = len({(c.kind, c.size) for c in here.values()}) == 1
                        if same and len(here) == len(self.groups[call.group]):
                            end = max(clocks[other] for other in here)
                            for other in here:
                                waiting[other], clocks[other] = None, end
                                calls[other][-1] = calls[other][-1]._replace(is_over=True)
        found: list[Record] = []
        for rank, issued in enumerate(calls):
            program = programs[rank]
            if program and waiting[rank] is None and program[0].kind.startswith("recv"):
                call = program[0]
                counts[rank][call.group + "p"] += 1
                shape = ((call.size,),)
                issued.append(RecordedCall(
                    call.group, counts[rank][call.group + "p"], call.kind, (shape, shape), ("Float", "Float"),
                    (f"{FILE}:{call.line}",), True, False, clocks[rank] + 1, 0,
                ))  # fmt: skip
            found.append(Record(rank, Path(f"trace_{rank}"), tuple(issued), 0, {}))
        return found


def cut(records: list[Record], entries: int, missing: int) -> list[Record]:
    """The last entries of each record, without one of them."""
    return [
        record._replace(calls=record.calls[-entries:], dropped=max(len(record.calls) - entries, 0))
        for record in records if record.rank != missing
    ]  # fmt: skip


def random_job(draw: random.Random, fault: str) -> Job:
    """A job with a fault at a random call of a random rank."""
    while True:
        dp, tp, pp = (draw.choice((1, 2, 4)) for _ in range(3))
        if 4 <= dp * tp * pp <= 32:
            break
    job = Job(dp, tp, pp, draw.randrange(3, 12), draw.randrange(2, 6), draw.randrange(1, 5))
    if not fault:
        return job
    while True:
        rank = draw.randrange(job.ranks)
        calls = job.program(rank)
        at = draw.randrange(len(calls) // job.steps, len(calls) - 2)
        one, other = calls[at], calls[at + 1]
        if fault == "swapped" and (one == other or one.peer >= 0 or other.peer >= 0 or one.group != other.group):
            if draw.random() < 0.02:
                return random_job(draw, fault)
            continue
        if one.peer >= 0 and fault in ("other size", "other group", "doubled", "left out"):
            if draw.random() < 0.02:
                return random_job(draw, fault)
            continue
        return replace(job, fault=fault, rank=rank, at=at)


def step_of(job: Job, rank: int) -> list[RecordedCall]:
    """The calls of a step, as a program has them."""
    calls = replace(job, fault="", rank=-1, steps=1).program(rank)
    lines = [f"/net/{FILE}:{call.line}" for call in calls]
    pairs = zip(calls, lines, strict=True)
    return [RecordedCall("", 0, call.kind, (), (), (line,), call.peer >= 0, False, 0, 0) for call, line in pairs]


def outcome(seed: int, fault: str, with_program: bool = False) -> tuple[str, Job, bool, bool]:
    """(explanation, job, whether the culprit is right, whether its line is) of a random job."""
    draw = random.Random(f"{seed} {fault}")
    job = random_job(draw, fault)
    records = job.run(draw)
    missing = draw.randrange(job.ranks) if draw.random() < 1 / 3 else -1
    if fault == "dead":
        missing = job.rank if draw.random() < 0.5 else missing
    steps = {rank: step_of(job, rank) for rank in range(job.ranks)} if with_program else None
    found = explain(cut(records, draw.choice((50, 200, 2000)), missing), job.ranks, steps)
    if not fault:
        return str(found.explanations), job, not found.explanations, True
    if not found.explanations:
        return "nothing", job, False, False
    first = found.explanations[0]
    planned = replace(job, rank=-1).program(job.rank)[job.at]
    line = first.call.place if first.call is not None else ""
    is_line = fault == "slow" or line.endswith(f"{FILE}:{planned.line}")
    return f"{first.fault} by {first.rank} at {line}", job, first.rank == job.rank, is_line

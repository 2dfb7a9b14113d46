"""PyTorch's own samples of its operators (`op_db`), read as exported programs and compared with PyTorch.

    python -m docs.site.operator_database --jobs 16 --results results --table page.md
    python -m docs.site.operator_database --dtype float32 int64 --ranks 2 --jobs 16 --results results

Each sample is recorded as the graph that `torch.export` gives, read, compiled and run on one rank. Values and gradients
are compared with PyTorch's. Samples are right, wrong, refused by a message, of unknown kinds, or crash. With `--ranks`
samples run with random legal layouts and are compared with one rank. The exit status is 1 if a sample is wrong or
crashes.

`--results` is a folder with a file for each element type and number of ranks. A run with the same options continues
the results in it; `--table` writes the page from all its files.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import multiprocessing
import re
import signal
import sys
import time
import types
import unittest
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs.site.operator_samples import SECONDS, SampleOutcome, compared, compared_step
from docs.site.samples_on_ranks import compared_on_ranks
from mspc.ir.diagnostics import MspcError

DTYPES = ("float32", "float64", "int64", "bool", "bfloat16", "complex64")
NEVER = ("to_sparse", "sparse.", "nested.", "jiterator", "item", "equal", "allclose")
"""Operators whose results are no dense tensors, or that run on GPUs alone."""
PART_SECONDS = 15.0
"""The time after which a worker hands back what it has, so that operators with many samples are shared."""

SHOWN_EVERY = 10.0
"""Seconds between lines of progress."""


def operators_of_pytorch() -> Sequence[Any]:
    """Return `op_db`. PyTorch's tests import `expecttest`, of which nothing is used here. Samples look for the test
    that draws them in the sources of all frames, which takes most of their time; here there is none."""
    if "expecttest" not in sys.modules:
        module: Any = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    return [each for each in op_db if not f"{each.name}.".startswith(NEVER)]


class Part(NamedTuple):
    """Successive samples of one operator: every `share`th one from the sample `start` on. is_step: with their
    gradients, as autograd computes them."""

    operator: int
    dtype: str
    ranks: int
    share: int
    start: int = 0
    is_step: bool = False


def outcomes_of(part: Part) -> Generator[int | SampleOutcome, None, int | None]:
    """Compare the samples of a part: yield the number of each one before it is compared, and then its outcome. Return
    the number of the sample at which another part continues, None at the end."""
    import torch

    each = operators_of_pytorch()[part.operator]
    torch.manual_seed(0)
    np.random.seed(0)
    silent, begin = io.StringIO(), time.monotonic()
    with (
        _time_limit(), warnings.catch_warnings(), contextlib.redirect_stderr(silent),
        contextlib.redirect_stdout(silent),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        grads = part.dtype in ("float32", "float64") and each.supports_autograd
        yield part.start
        for place, given in enumerate(_samples(each, getattr(torch, part.dtype), grads)):
            if place < part.start or place % part.share:
                continue
            if place > part.start and time.monotonic() - begin > PART_SECONDS:
                return place
            yield place
            outcome = (
                compared_on_ranks(each, given, part.dtype, grads, part.ranks) if part.ranks > 1
                else compared_step(each, given, part.dtype) if part.is_step and grads
                else compared(each, given, part.dtype, grads)
            )  # fmt: skip
            if outcome is not None:
                yield outcome
    return None


def _samples(each: Any, kind: Any, grads: bool) -> Iterator[Any]:
    try:
        yield from each.sample_inputs("cpu", kind, requires_grad=grads)
    except (RuntimeError, NotImplementedError):  # the operator has no sample of this type here
        return


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Let the alarms of `compared` raise TimeoutError; the handler of the process is restored."""
    before = signal.signal(signal.SIGALRM, _late)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _late(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def parts_of(dtype: str, only: Sequence[str], share: int, ranks: int) -> list[Part]:
    """Return a part for each operator that has this type. only: beginnings of names, all if empty."""
    import torch

    return [
        Part(index, dtype, ranks, share) for index, each in enumerate(operators_of_pytorch())
        if getattr(torch, dtype) in each.dtypes and (not only or each.name.startswith(tuple(only)))
    ]  # fmt: skip


Done = tuple[Part, list[SampleOutcome], int | None]


def done_parts(parts: Sequence[Part], jobs: int, logs: Path | None = None) -> Iterator[Done]:
    """Compare the samples of parts, and of those that continue them, in processes if there are several jobs. logs: the
    folder for the stacks of processes that die."""
    waiting = deque(parts)
    if jobs == 1:
        while waiting:
            yield _continued(_in_this_process(waiting.popleft()), waiting)
        return
    workers = [_Worker(logs, number) for number in range(min(jobs, len(parts)))]
    busy = dict[Any, _Worker]()
    try:
        while waiting or busy:
            for worker in workers:
                if waiting and worker.part is None:
                    worker.begin(waiting.popleft())
                    busy[worker.pipe] = worker
            for pipe in connection.wait(list(busy)):
                done = busy[pipe].read()
                if done is not None:
                    del busy[pipe]
                    yield _continued(done, waiting)
    finally:
        for worker in workers:
            worker.end()


def _continued(done: Done, waiting: deque[Part]) -> Done:
    """Put the rest of a part into the queue."""
    part, _, following = done
    if following is not None:
        waiting.append(part._replace(start=following))
    return done


def _in_this_process(part: Part) -> Done:
    found, samples = list[SampleOutcome](), outcomes_of(part)
    while True:
        try:
            message = next(samples)
        except StopIteration as end:
            return part, found, end.value
        if isinstance(message, SampleOutcome):
            found.append(message)


class _Worker:
    """A process that compares the samples of one part after the other. If it dies, the sample that it was at counts as
    a crash, and another process continues after it."""

    def __init__(self, logs: Path | None, number: int) -> None:
        self.logs, self.number = logs, number
        self.part: Part | None = None
        self.found, self.place = list[SampleOutcome](), 0
        self.start()

    def start(self) -> None:
        """Start the process. It shares nothing with this one: PyTorch's threads do not survive a fork."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        log = None if self.logs is None else str(self.logs / f"worker-{self.number}.log")
        self.process = context.Process(target=_serve, args=(theirs, log), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, part: Part) -> None:
        """Let it compare the samples of a part."""
        self.part, self.found, self.place = part, [], part.start
        with contextlib.suppress(OSError):  # it has died: the next `read` says so
            self.pipe.send(part)

    def read(self) -> Done | None:
        """Read a message; return the part if it is done."""
        part = self.part
        assert part is not None, "a part has begun"
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            each = operators_of_pytorch()[part.operator]
            reason = f"sample {self.place}: the process ended with status {self.process.exitcode}"
            self.found.append(SampleOutcome(each.name, part.dtype, "crash", "", reason))
            self.start()
            message = ("end", self.place + 1)
        if isinstance(message, SampleOutcome):
            self.found.append(message)
        elif isinstance(message, int):
            self.place = message
        else:
            self.part = None
            return part, self.found, message[1]
        return None

    def end(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


def _serve(pipe: Any, log: str | None) -> None:
    import torch

    torch.set_num_threads(1)
    if log is not None:
        faulthandler.enable(open(log, "a"))  # open as long as the process
    for part in iter(pipe.recv, None):
        samples = outcomes_of(part)
        while True:
            try:
                pipe.send(next(samples))
            except StopIteration as end:
                pipe.send(("end", end.value))
                break


class ResultFile:
    """A file of results: a line of JSON for its options, and one for each part that is done."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.path, self.outcomes = path, list[SampleOutcome]()
        self.reached: dict[int, int | None] = {}
        found = path.read_text().splitlines() if path.exists() else []
        if not found:
            path.write_text(json.dumps(options) + "\n")
        elif json.loads(found[0]) != options:
            raise MspcError(f"{path} has the results of {found[0]}, not of {json.dumps(options)}",
                            notes=["give another folder, or remove the file"])  # fmt: skip
        for line in found[1:]:
            part = json.loads(line)
            self.reached[part["operator"]] = part["next"]
            self.outcomes += [SampleOutcome(part["name"], options["dtype"], *each) for each in part["samples"]]

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that are not done yet."""
        starts = [(part, self.reached.get(part.operator, part.start)) for part in parts]
        return [part._replace(start=start) for part, start in starts if start is not None]

    def add(self, part: Part, outcomes: Sequence[SampleOutcome], following: int | None) -> None:
        """Append the results of a part."""
        self.outcomes += outcomes
        name = operators_of_pytorch()[part.operator].name
        line = {"operator": part.operator, "name": name, "start": part.start, "next": following,
                "samples": [[each.values, each.gradients, each.reason] for each in outcomes]}  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


TABLE = "<!-- table -->"
"""The line of a page after which its tables are written."""
VERDICTS = ("right", "wrong", "refused", "unknown", "crash")


def table(outcomes: dict[str, list[SampleOutcome]]) -> str:
    """Return the table of samples. outcomes: by element type and number of ranks."""
    lines = ["| type | operators | all right | samples | " + " | ".join(VERDICTS) + " | right | gradients | right |",
             "|---|" + "---:|" * (len(VERDICTS) + 6)]  # fmt: skip
    for title, own in outcomes.items():
        counts, grads = Counter(each.values for each in own), Counter(each.gradients for each in own)
        known = sum(grads.values()) - grads[""]
        shares = [f"{100 * counts['right'] / max(1, len(own)):.1f} %", known,
                  f"{100 * grads['right'] / max(1, known):.1f} %"]  # fmt: skip
        names = {each.name for each in own}
        whole = names - {each.name for each in own if each.values != "right" or each.gradients not in ("", "right")}
        cells = [title, len(names), len(whole), len(own), *[counts[each] for each in VERDICTS], *shares]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def reasons(outcomes: dict[str, list[SampleOutcome]]) -> str:
    """Return the table of operators with samples that are not right: how many, and the first reason."""
    found: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for title, own in outcomes.items():
        for each in own:
            verdict = each.values if each.values != "right" else each.gradients and f"{each.gradients} gradients"
            if verdict not in ("", "right gradients"):
                found[each.name, verdict][title].append(_short(each.reason))
    lines = ["| operator | samples | reason |", "|---|---|---|"]
    for (name, verdict), titles in sorted(found.items()):
        counts = ", ".join(f"{len(reasons)} {title}" for title, reasons in titles.items())
        lines.append(f"| {name} | {verdict}: {counts} | {next(iter(titles.values()))[0]} |")
    return "\n".join(lines)


def _short(reason: str) -> str:
    text = re.sub(r"^(\w+: )?(error: )?(sample has .* not known: )?", "", reason).partition("  note:")[0]
    return text[:120].strip().replace("|", "\\|")


def read_results(folder: Path) -> dict[str, list[SampleOutcome]]:
    """Return the results in a folder, by element type and number of ranks."""
    found = list[tuple[int, int, str, list[SampleOutcome]]]()
    for path in folder.glob("*.jsonl"):
        options = json.loads(path.read_text().partition("\n")[0])
        dtype, ranks = options["dtype"], options["ranks"]
        found.append((ranks, DTYPES.index(dtype), _title(dtype, ranks), ResultFile(path, options).outcomes))
    return {title: outcomes for _, _, title, outcomes in sorted(found, key=lambda each: each[:2])}


def _title(dtype: str, ranks: int) -> str:
    return dtype if ranks == 1 else f"{dtype}, {ranks} ranks"


def _run(options: argparse.Namespace) -> dict[str, list[SampleOutcome]]:
    """Compare the samples that are asked for, and return the results of all."""
    import torch

    found = dict[str, list[SampleOutcome]]()
    for dtype in options.dtype:
        parts, file = parts_of(dtype, options.only, options.share, options.ranks), None
        if options.results is not None:
            options.results.mkdir(parents=True, exist_ok=True)
            told = {"dtype": dtype, "ranks": options.ranks, "share": options.share, "only": options.only,
                    "torch": torch.__version__.partition("+")[0]}  # fmt: skip
            file = ResultFile(options.results / f"{dtype}{f'-{options.ranks}' * (options.ranks > 1)}.jsonl", told)
            parts = file.missing(parts)
        outcomes = found.setdefault(_title(dtype, options.ranks), [] if file is None else file.outcomes)
        shown, count = time.monotonic(), 0
        for part, new, following in done_parts(parts, options.jobs, options.results):
            count += following is None
            if time.monotonic() - shown > SHOWN_EVERY:
                shown = time.monotonic()
                print(f"{dtype}: {count} of {len(parts)} operators", file=sys.stderr, flush=True)
            if file is None:
                outcomes += new
            else:
                file.add(part, new, following)
            for each in new if options.details else ():
                if each.values != "right" or each.gradients not in ("", "right"):
                    print(f"{each.dtype} {each.name}: {each.values} {each.gradients}: {each.reason}", flush=True)
    return found


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=DTYPES, help="none: only read results")
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names of operators")
    parser.add_argument("--share", type=int, default=1, help="every nth sample of an operator")
    parser.add_argument("--ranks", type=int, default=1, help="compare so many ranks with one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--details", action="store_true", help="print each sample that is not right")
    parser.add_argument("--results", type=Path, help="the folder of the results, where a run continues")
    parser.add_argument("--table", type=Path, help="the page whose tables are replaced")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the comparison and print the table."""
    options = options_of(sys.argv[1:])
    try:
        found = _run(options)
        found = found if options.results is None else read_results(options.results)
    except MspcError as error:
        print(error.render(), file=sys.stderr)
        return 2
    print(table(found))
    if options.table is not None:
        before, _, _ = options.table.read_text().partition(TABLE)
        options.table.write_text(f"{before}{TABLE}\n\n{table(found)}\n\n{reasons(found)}\n")
    verdicts = {verdict for own in found.values() for each in own for verdict in (each.values, each.gradients)}
    return 1 if verdicts & {"wrong", "crash"} else 0


if __name__ == "__main__":
    sys.exit(main())

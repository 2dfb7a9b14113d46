"""Whether tests notice when one place of the code is changed: a comparison, an operator, a constant, a call left out.

`python -m tests.mutation --folder FOLDER --count 1000 --tests tests/passes tests/compiler -- passes ops/optim`
collects the tests once, notes which of them run which statements (`reached.jsonl` in the folder, read again by the next
call), and draws changes from every file in proportion to its places. For each a process is forked that has the change
in its functions and runs the tests that reach the statement until one fails. `results.jsonl` has a line for each.

`--again FILE` takes those that survived in an earlier `results.jsonl`, with more tests or more `--seconds`. One change
of twenty changes nothing and has to survive, which shows that tests fail for the changes alone. Tests that start
processes count for nothing: a change is in the process that runs the tests.
"""

import argparse
import ast
import builtins
import collections
import functools
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.changes import changes, compiled, listed, places, put_in, remembered, shown
from tests.mutation.processes import forked

ROOT = Path(__file__).resolve().parents[2]
SLOWEST = 30
"""Seconds that a test may take to be noted."""
AT_ONCE = 40
"""Tests of one file that a process takes to find out what they reach."""


class Mutation:
    """A plugin of pytest that makes changes, and runs the tests that reach them, in place of all tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        named = [ROOT / target for target in options.targets]
        paths = [path for name in named for path in ([name] if name.is_file() else sorted(name.rglob("*.py")))]
        self.texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
        counts = {file: len(places(ast.parse(text))) for file, text in self.texts.items()}
        self.first = dict(zip(counts, itertools.accumulate(counts.values(), initial=0), strict=False))
        self.items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for file in self.texts:
            importlib.import_module("mspc." + file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for item in session.items:  # without the process that runs commands, in which there would be no change
            item.fixturenames[:] = [name for name in item.fixturenames if name != "_served"]  # type: ignore[attr-defined]
            self.items[item.nodeid] = item
        gc.collect()
        with remembered():
            self.try_changes()
        return True

    def try_changes(self) -> None:
        """Try changes, and write the outcome of each."""
        reached = self.reached()
        tried = self.survived() if self.options.again else self.drawn()
        totals = collections.Counter[str]()
        tests = [self.chosen(reached.get(self.first[record["file"]] + record["place"], [])) for record in tried]
        calls = [functools.partial(self.killer, *pair) for pair in zip(tried, tests, strict=True)]
        with (self.folder / "results.jsonl").open("w", encoding="utf-8") as results:
            for number, result in forked(calls, self.options.jobs):
                record = tried[number] | {"tests": len(tests[number])}
                if not tests[number]:
                    record["verdict"] = "not reached"
                elif isinstance(result, int):
                    record["verdict"] = "killed" if result == -signal.SIGALRM else f"broken {result}"
                else:
                    record |= {"verdict": "killed" if result else "survived", "test": result}
                totals[record["verdict"] + (" unchanged" if record["which"] is None else "")] += 1
                results.write(json.dumps(record) + "\n")
                results.flush()
        print(dict(totals), flush=True)

    def reached(self) -> dict[int, list[tuple[float, str]]]:
        """By the number of a statement the tests that reach it and pass, with their seconds."""
        path, digest = self.folder / "reached.jsonl", hashlib.sha256("".join(self.texts.values()).encode()).hexdigest()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        known = [json.loads(line) for line in lines[1:]] if lines[:1] == [digest] else []
        seen = {name for name, _, _ in known}
        new = sorted((name for name in self.items if name not in seen), key=lambda name: name.partition("::")[0])
        groups = [list(group) for _, group in itertools.groupby(new, key=lambda name: name.partition("::")[0])]
        parts = [group[start : start + AT_ONCE] for group in groups for start in range(0, len(group), AT_ONCE)]
        with path.open("a" if known else "w", encoding="utf-8") as written:
            written.write("" if known else digest + "\n")
            looks = [functools.partial(self.look, part) for part in parts]
            for number, result in forked(looks, self.options.jobs):
                found = [[name, None, []] for name in parts[number]] if isinstance(result, int) else result
                written.writelines(json.dumps(entry) + "\n" for entry in found)
                known += found
        tests: dict[int, list[tuple[float, str]]] = collections.defaultdict(list)
        for name, seconds, numbers in known:
            if seconds is not None and name in self.items:
                for number in numbers:
                    tests[number].append((seconds, name))
        return tests

    def look(self, names: list[str]) -> list[tuple[str, float | None, list[int]]]:
        """Run tests: the name of each, its seconds if it passes, and the numbers of the statements that it reaches."""
        hits: set[int] = set()
        codes = {}
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for file, text in self.texts.items():
            tree = ast.parse(text)
            for number, (block, index) in reversed(list(enumerate(places(tree), self.first[file]))):
                block.insert(index, ast.parse(f"__reached__({number})").body[0])
            codes[str(ROOT / file)] = compiled(ROOT / file, tree)
        builtins.__reached__ = hits.add  # type: ignore[attr-defined]
        put_in(codes)
        found: list[tuple[str, float | None, list[int]]] = []
        for name, following in itertools.pairwise([*names, None]):
            hits.clear()
            signal.alarm(SLOWEST)
            start = time.perf_counter()
            passed = self.outcome(name, following) == "passed"
            found.append((name, time.perf_counter() - start if passed else None, sorted(hits)))
        return found

    def outcome(self, name: str, following: str | None) -> str:
        """How a test ends, which leaves to the following one what both need."""
        next_item = self.items[following] if following else None
        try:
            reports = runtestprotocol(self.items[name], log=False, nextitem=next_item)
        except KeyboardInterrupt:  # it has taken too long
            return "failed"
        return next((report.outcome for report in reports if not report.passed), "passed")

    def survived(self) -> list[dict[str, Any]]:
        """Return the survivors of an earlier call, in statements that are still what they were."""
        lines = Path(self.options.again).read_text(encoding="utf-8").splitlines()
        old = [r for r in map(json.loads, lines) if r["verdict"] == "survived" and r["which"] is not None]
        old = [r for r in old if r["file"] in self.texts]
        return [r for r in old if r | shown(self.texts[r["file"]], r["place"], r["which"]) == r]

    def drawn(self) -> list[dict[str, Any]]:
        """Changes drawn from all there are, from every file in proportion; of twenty one changes nothing."""
        everything = [listed(file, text) for file, text in self.texts.items()]
        total = sum(map(len, everything))
        draw = random.Random(self.options.seed)
        print(f"{total} changes", flush=True)
        shares = [max(1, round(self.options.count * len(found) / total)) for found in everything]
        drawn = [r for found, n in zip(everything, shares, strict=True) for r in draw.sample(found, min(len(found), n))]
        for record in drawn:
            record |= shown(self.texts[record["file"]], record["place"], record["which"])
        drawn += [record | {"which": None} for record in drawn[19::20]]
        draw.shuffle(drawn)
        return drawn

    def chosen(self, tests: list[tuple[float, str]]) -> list[str]:
        """Quick tests of every file, while there is time: the more of a file are taken, the quicker has one to be."""
        turns = collections.Counter[str]()
        ordered = []
        for seconds, name in sorted(tests):
            turns[file := name.partition("::")[0]] += 1
            ordered.append((turns[file] * seconds, seconds, name))
        sums = itertools.accumulate((seconds for _, seconds, _ in sorted(ordered)), initial=0.0)
        return [name for (_, _, name), sum_ in zip(sorted(ordered), sums, strict=False) if sum_ < self.options.seconds]

    def killer(self, record: dict[str, Any], names: list[str]) -> str:
        """The first of the tests that fails with a change, or nothing."""
        signal.alarm(int(3 * self.options.seconds) + SLOWEST)
        file = record["file"]
        tree = ast.parse(self.texts[file])
        block, index = places(tree)[record["place"]]
        if record["which"] is not None:
            list(changes(block, index))[record["which"]][1]()
        put_in({str(ROOT / file): compiled(ROOT / file, tree)})
        pairs = itertools.pairwise([*names, None])
        return next((name for name, following in pairs if name and self.outcome(name, following) == "failed"), "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="+", help="files and folders whose functions are changed")
    parser.add_argument("--folder", required=True, help="where results.jsonl and reached.jsonl are written")
    parser.add_argument("--count", type=int, default=200, help="about how many changes are tried")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for each change")
    parser.add_argument("--again", help="a results.jsonl: try what survived there")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="where tests are looked for")
    options = parser.parse_args()
    sys.exit(pytest.main(["-q", *options.tests], plugins=[Mutation(options)]))


if __name__ == "__main__":
    main()

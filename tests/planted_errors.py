"""Plants errors in the code of mspc, one each, and sees whether `mspc verify` finds them.

    python tests/planted_errors.py             # all of them, on the networks that they touch
    python tests/planted_errors.py tanh stale  # those whose names begin so

An error is a row of `planted_errors.toml`: a file, text that is there once, and the text in its place. Each is planted
in a process of its own (`planted.py`). Every network must verify without an error. Errors in code that all devices
share are looked for by the judge that must see them: `--against torch`, `--mpi`, data parallel mode, or the reference,
which runs no judged pass. If a network has nothing that an error touches, another one must find it; `free` says why.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.planted import PACKAGE, Case, Planted, outcomes, plant  # found where this file is run, too
from tests.planted_networks import NETWORK, NETWORKS, PARALLEL
from tests.texts import table_of

LEFT_OUT = ("tests", "docs", "benchmarks", "build", "dist")
SAMPLE = "samples/transformer/net.py"
NO_ERROR = "no error"


class Group(NamedTuple):
    """Errors that all these judges must see in all these networks. notes: parts of reports on the first network."""

    networks: list[str]
    judges: list[str]
    errors: list[Planted]
    notes: dict[str, str]


def read_groups() -> list[Group]:
    """Return the groups of `planted_errors.toml`. A group may name errors of the groups before it."""
    known: dict[str, Planted] = {}
    groups: list[Group] = []
    for group in table_of(Path(__file__).with_suffix(".toml"), "group"):
        own = {row["name"]: Planted(**row) for row in group.get("errors", ())}
        known |= own
        errors = [*own.values(), *(known[name] for name in group.get("names", ()))]
        groups.append(Group(group["networks"], group["judges"], errors, group.get("notes", {})))
    return groups


GROUPS = read_groups()
THROUGH_MPI = [error for group in GROUPS if group.judges == ["mpi"] for error in group.errors]


def cases(folder: Path) -> Iterator[tuple[Case, str]]:
    """Every case that a process can have of its own, with what verify must say.

    Args:
        folder: networks are written there.
    """
    paths = {name: folder / f"{name}.py" for name in NETWORKS} | {SAMPLE: PACKAGE / SAMPLE}
    for name, (text, _) in NETWORKS.items():
        paths[name].write_text(text, encoding="utf-8")
    ranks = {name: count for name, (_, count) in NETWORKS.items()} | {SAMPLE: 8}
    known: set[tuple[str, str]] = set()
    for group in (group for group in GROUPS if group.judges != ["mpi"]):
        for name, judge in product(group.networks, group.judges):
            if (name, judge) not in known:
                known.add((name, judge))
                yield Case(f"{name}: {judge}: {NO_ERROR}", nothing, paths[name], ranks[name], judge), "equal"
            for error in group.errors:
                wanted = "equal" if name in error.free else "differs"
                change = partial(plant, error)
                yield Case(f"{name}: {judge}: {error.name}", change, paths[name], ranks[name], judge), wanted


def nothing() -> None:
    """Plant no error."""


def linked(package: Path, made: Path, own: tuple[str, ...]) -> None:
    """A folder of links to all that a package holds. own: the path of a file in it, whose folders are made anew."""
    made.mkdir()
    for path in package.iterdir():
        if path.name == own[0] and path.is_dir():
            linked(path, made / path.name, own[1:])
        elif path.name != own[0] and path.name not in LEFT_OUT and not path.name.startswith("."):
            (made / path.name).symlink_to(path)


def copied(folder: Path, planted: Planted, text: str = NETWORK) -> Path:
    """The package once more in `folder`, with the error in a file of its own; the path of a network of this text beside
    it."""
    linked(PACKAGE, folder / "mspc", Path(planted.file).parts)
    path = folder / "mspc" / planted.file
    source = (PACKAGE / planted.file).read_text(encoding="utf-8")
    path.write_text(source.replace(planted.old, planted.new), encoding="utf-8")
    network = folder / "network.py"
    network.write_text(text, encoding="utf-8")
    return network


def verified_through_mpi(planted: Planted, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """`mspc verify --mpi` of a copy of the package with the error, as ranks are processes of their own."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        network = copied(folder, planted, PARALLEL)
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-P", "-m", "mspc", "verify", str(network), "--ranks", "2", "--mpi", "--quiet"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip


def main(names: list[str]) -> int:
    def is_asked(name: str) -> bool:
        return not names or any(name.startswith(each) for each in names)

    wrong = 0
    start = time.perf_counter()

    def show(name: str, kind: str, wanted: str, said: str) -> None:
        nonlocal wrong
        wrong += kind != wanted
        mark = "as wanted" if kind == wanted else "NOT AS WANTED"
        print(f"{name}: {kind}, {mark}, {time.perf_counter() - start:.0f} s: {said[:150]}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        every = [(case, wanted) for case, wanted in cases(Path(folder)) if is_asked(case.name.rpartition(": ")[2])]
        wanted = {case.name: want for case, want in every}
        for case, kind, said in outcomes([case for case, _ in every]):
            show(case.name, kind, wanted[case.name], said)
    for planted in [error for error in THROUGH_MPI if is_asked(error.name)]:
        run = verified_through_mpi(planted)
        kind = {0: "equal", 1: "differs"}.get(run.returncode, f"status {run.returncode}")
        show(f"parallel: mpi: {planted.name}", kind, "differs", (run.stdout.splitlines() or [""])[-1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Classes that become dataclasses when they are first used, names that a mistyped one may have meant, and files whose
writing is ended."""

import copy
import dataclasses
import inspect
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mspc.ir.diagnostics import all_of, did_you_mean, nearest
from mspc.ir.files.atomic_writing import UNFINISHED
from mspc.ir.late_dataclass import dataclass
from tests.printed_lines import lines_until
from tests.serving import succeed


def test_a_copy_in_another_process_is_whole() -> None:
    from mspc.ir.diagnostics import Location
    from mspc.ops.math.matmul import MatMul

    sent = pickle.dumps((MatMul(True, False), MatMul(), Location("net.py", 1)))
    text = f"import pickle; a, b, c = pickle.loads({sent!r}); print(a == b, a, len({{a, b}}), c)"
    done = succeed(sys.executable, "-c", text)
    assert done.stdout == "False MatMul(transpose_a=True, transpose_b=False) 2 net.py:1\n"


def _family(make: Callable[..., Any], **options: bool) -> list[type[Any]]:
    """Classes that inherit from each other, made by `make`, the last of them without it."""

    class Place:
        """Where something is."""

        kind: ClassVar[str] = "place"
        row: int
        column: int = 0
        seen: list[int] = field(default_factory=list, compare=False)
        marks: tuple[str, ...] = field(default=(), kw_only=True)

    Place = make(**options)(Place)  # type: ignore[misc]

    class Named(Place):
        """A place with a name, whose length it counts."""

        name: str = field(default="", repr=False)
        length: int = field(default=0, init=False)
        column: int = 7

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.name))

    Named = make(**options)(Named)  # type: ignore[misc]

    class Inheriting(Named):
        """With nothing of its own."""

    return [Place, Named, Inheriting]


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("eq", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_it_does_what_the_standard_library_does(frozen: bool, eq: bool, slots: bool) -> None:
    options = {"frozen": frozen, "eq": eq, "slots": slots}
    for late, standard in zip(_family(dataclass, **options), _family(dataclasses.dataclass, **options), strict=True):
        assert _told(late, slots) == _told(standard, slots)


def _told(cls: type[Any], slots: bool) -> list[Any]:
    """The visible parts of a class and its instances."""
    fields = [(f.name, f.type, f.default, f.init, f.repr, f.compare, f.kw_only) for f in dataclasses.fields(cls)]
    one, two = cls(1, marks=("a",)), cls(1, 2, [3], marks=("a",))
    said: list[Any] = [fields, repr(one), repr(two), one == two, one == copy.copy(one), one == copy.deepcopy(one)]
    said += [one == 1, one.seen, two.seen, cls.__match_args__, cls.kind, str(inspect.signature(cls))]
    said += [hasattr(one, "__dict__"), dataclasses.replace(two, row=5).row, dataclasses.asdict(two)]
    said += [cls.__hash__ is None, cls.__init__.__qualname__, vars(cls).get("__slots__")]
    said.append(hash(one) == hash(cls(1, marks=("a",))) if cls.__hash__ is not None else "no hash")
    changes = [lambda: setattr(one, "row", 9), lambda: delattr(one, "row"), cls]
    if not slots:  # elsewhere the standard library tells of a mistake of its own
        changes.append(lambda: setattr(one, "new", 9))
    for change in changes:
        try:
            change()
            said.append("done")
        except (AttributeError, TypeError) as error:
            said.append((type(error), str(error)))
    return said


NAMES = ("grad", "simplify", "MatMul", "BatchMatMul", "Concat", "fuse_norm", "fuse_matmul")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gard", ["grad"]),
        ("matmul", ["MatMul"]),
        ("MatMull", ["MatMul", "fuse_matmul", "BatchMatMul"]),
        ("norm", ["fuse_norm"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_nearest_names(name: str, found: list[str]) -> None:
    assert nearest(name, NAMES)[: max(1, len(found))] == found


def test_notes() -> None:
    assert did_you_mean("zzz", NAMES) == []
    assert did_you_mean("gard", NAMES) == ["did you mean 'grad'?"]
    assert did_you_mean("float", ["float16", "float32", "float64"]) == [
        "did you mean 'float64', 'float32' or 'float16'?"
    ]
    assert all_of("gard", ["simplify", "execute", "grad"]) == "grad, execute, simplify"


SLOWLY = """
import time
from pathlib import Path
from mspc.checkpoint.files import atomic_publication, write_synced
from mspc.checkpoint.sliced import in_threads
from mspc.ir.files.atomic_writing import write_atomically

def slowly(file):
    file.write(b"half"); file.flush(); print("writing", flush=True)
    while True: time.sleep(0.05)
"""
WAYS = {
    "a file": "write_atomically(Path('x'), slowly)",
    "a file of a checkpoint": "write_synced(Path('x'), slowly)",
    "files that get their names together": """
with atomic_publication(Path(".")) as beside:
    (beside / "rank_0").mkdir()
    write_synced(beside / "rank_0" / "x", slowly)
""",
    "a file in a thread": "in_threads([lambda: write_synced(Path('x'), slowly)], 2, print)",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finished_is_removed(tmp_path: Path, way: str) -> None:
    (tmp_path / "x").write_text("earlier")
    command = [sys.executable, "-c", SLOWLY + WAYS[way]]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with job:
        assert lines_until(job, bool) == ["writing\n"]
        assert any(UNFINISHED.fullmatch(path.name) for path in tmp_path.iterdir())
        job.terminate()
    assert job.returncode == -signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "earlier"

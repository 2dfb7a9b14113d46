"""A class becomes a dataclass when it is first used; nobody can tell it from one of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from mspc.ir.late_dataclass import _Unfinished, dataclass
from mspc.ops.op import Op
from tests.conftest import HANG


class _Base(Op, abstract=True):
    size: int = 1


class _Scaled(_Base, abstract=True):
    """With a field of its own."""

    scale: float = 2.0


class _Plain(_Scaled, abstract=True):
    """Without."""


def test_fields_are_there_before_the_first_instance() -> None:
    assert [field.name for field in dataclasses.fields(_Plain)] == ["size", "scale"]
    assert dataclasses.is_dataclass(_Scaled)


def test_instances_compare_print_and_are_copied() -> None:
    one = _Scaled(3)
    assert one == _Scaled(3, 2.0)
    assert one != _Scaled(4)
    assert hash(one) == hash(_Scaled(3))
    assert repr(one) == "_Scaled(size=3, scale=2.0)"
    assert copy.copy(one) == dataclasses.replace(_Scaled(1), size=3)
    assert one != _Plain(3)
    assert one.attributes() == {"size": 3, "scale": 2.0}


def test_a_copy_in_another_process_is_whole() -> None:
    from mspc.ir.diagnostics import Location
    from mspc.ops.math.matmul import MatMul

    sent = pickle.dumps((MatMul(True, False), MatMul(), Location("net.py", 1)))
    text = f"import pickle; a, b, c = pickle.loads({sent!r}); print(a == b, a, len({{a, b}}), c)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
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


def test_the_two_may_inherit_from_each_other() -> None:
    @dataclass(frozen=True)
    class Late:
        """Late."""

        a: int

    @dataclasses.dataclass(frozen=True)
    class Standard(Late):
        """At once."""

        b: int = 2

    @dataclass(frozen=True)
    class Last(Standard):
        """Late again."""

        c: int = 3

    assert repr(Last(1)).endswith("Last(a=1, b=2, c=3)")
    assert Standard(1) == Standard(1, 2)


def test_nothing_is_made_of_a_class_that_nobody_uses() -> None:
    @dataclass
    class Unused:
        """Unused."""

        a: int

    assert isinstance(vars(Unused)["__init__"], _Unfinished)
    assert Unused(1).a == 1
    assert not isinstance(vars(Unused)["__init__"], _Unfinished)


def test_threads_that_are_first_together_wait_for_each_other() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            found: list[Any] = []
            place = _family(dataclass, frozen=True)[1]
            threads = [threading.Thread(target=lambda: found.append(place(1, name="abc"))) for _ in range(8)]  # noqa: B023
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(HANG)
                assert not thread.is_alive()
            assert len(set(found)) == 1
            assert len(found) == len(threads)
            assert found[0].length == 3
    finally:
        sys.setswitchinterval(before)

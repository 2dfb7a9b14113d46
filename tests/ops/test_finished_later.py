"""An operator class becomes a dataclass when it is first used; nobody can tell."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

from mspc.ops.op import Op


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
    from mspc.ops.math.matmul import MatMul

    sent = pickle.dumps((MatMul(True, False), MatMul()))
    text = f"import pickle; a, b = pickle.loads({sent!r}); print(a == b, a, len({{a, b}}))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False MatMul(transpose_a=True, transpose_b=False) 2\n"

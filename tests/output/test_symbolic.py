"""`symbolic_graph.txt`: one graph for the sizes that a call leaves open."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.output.symbolic import merged, points_of, polynomial, shown

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Symbol, Tensor, nn, ops
from mindspore.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)
        self.dense.matmul.shard(((2, 1), (2, 1)))

    def construct(self, x, y):
        CONSTRUCT


net = Net()
size = Symbol(divisor=4, unique=True)
net.set_inputs(Tensor(shape=[SIZES], dtype=ms.float32), Tensor(shape=[SIZES], dtype=ms.float32))
x = Tensor(np.ones(CALLED, np.float32))
net(x, x)
"""


def symbolic(folder: Path, construct: str, sizes: str = "size, 16", called: str = "(8, 16)", level: int = 1) -> str:
    script = folder / "net.py"
    text = SCRIPT.replace("CONSTRUCT", construct).replace("SIZES", sizes).replace("CALLED", called)
    script.write_text(text)
    compile_target(str(script), CompileOptions(ranks=4, level=level, out=folder / "out", only_ranks=(1,)))
    found = folder / "out" / "symbolic_graph.txt"
    return found.read_text() if found.exists() else ""


CONSTRUCT = "return ops.square(ops.concat((self.dense(x), x))[2:].reshape((-1, 8))).mean()"


def graph_of(text: str, **sizes: int) -> list[str]:
    """The lines of a symbolic graph with numbers in the place of expressions."""
    parts = re.split(r"([(),:{}<>]+)", text.partition(":\n# operators")[2])
    for place, part in enumerate(parts):
        if re.search(r"\bs\d\b", part):
            whole = re.sub(r"\d+", r"Fraction(\g<0>)", re.sub(r"\bs(\d)\b", lambda m: str(sizes[m[0]]), part))
            parts[place] = re.match(" *", part)[0] + str(eval(whole))  # type: ignore[index]
    return [line for line in "".join(parts).splitlines()[1:] if not line.startswith("#")]


def executed(folder: Path) -> list[str]:
    """The lines of what the rank executes."""
    (execute,) = (folder / "out" / "rank_1").glob("*_execute_*.ir")
    lines = execute.read_text().splitlines()
    return [line for line in lines if not line.startswith(("#", "compile_id"))]


def test_sizes_stand_as_expressions(tmp_path: Path, capsys: Any) -> None:
    text = symbolic(tmp_path, CONSTRUCT)
    assert text.startswith(
        "# What rank 1 executes, with the sizes that set_inputs leaves open as s1: for people to read, no file of "
        "mspc's.\n# s1: dimension 0 of input 'x', dimension 0 of input 'y'; declared: at least 1, a multiple of 4\n"
        "# compiled with s1 = 8; s1 = 16; s1 = 24:\n"
    )
    assert "%para1_x: <Tensor[Float32], (s1, 16)>" in text
    assert "(2*s1 - 2, 8)" in text
    assert " -> (<Tensor[Float32], (s1/2, 8)>)" in text
    assert graph_of(text, s1=8) == executed(tmp_path)
    symbolic(tmp_path, CONSTRUCT, called="(44, 16)")  # a size that was not looked at
    assert graph_of(text, s1=44) == executed(tmp_path)


def test_sizes_that_multiply(tmp_path: Path, capsys: Any) -> None:
    text = symbolic(tmp_path, "return self.dense(x.reshape((-1, 16))) * 1.0", "size, None, 16", "(8, 6, 16)")
    assert "# s2: dimension 1 of input 'x', dimension 1 of input 'y'; declared: any size\n" in text
    assert "(s1*s2, 16)" in text
    assert "(s1*s2/2, 8)" in text


@pytest.mark.parametrize(
    ("construct", "sizes", "expected"),
    [
        ("return x * y if x.shape[0] < 10 else x + y", "size, 16",
         "# with s1 = 8 and with s1 = 16 other operators run"),
        ("return x.reshape((4, 32)) + 1", "size, 16", "# for s1 no three sizes were found to compare: with 12 it "
         "does not compile: Reshape: shape (4, 32) needs 128 elements"),
        ("return x ** x.shape[0] ** 2", "size, 16", "# with s1 = 8: "),
        ("return x + y", "Symbol(max=9, min=8), 16", "# for s1 no three sizes were found to "
         "compare: with 9 it does not compile: Add: dimension 0 of input 1 is 8, but dimension 0 of input 0 says 9\n"),
    ],
)  # fmt: skip
def test_why_there_is_none(construct: str, sizes: str, expected: str, tmp_path: Path, capsys: Any) -> None:
    text = symbolic(tmp_path, construct, sizes)
    assert "# There is no one graph for all sizes that could be shown:\n" in text
    assert expected in text
    assert "%para" not in text or expected.endswith("8: ")


def test_there_is_no_file_where_it_was_not_asked_for(tmp_path: Path, capsys: Any) -> None:
    assert symbolic(tmp_path, "return self.dense(x)", level=0) == ""
    assert symbolic(tmp_path, "return self.dense(x)", sizes="8, 16") == ""


def test_polynomials() -> None:
    sizes = [(8, 16, 24), (3, 5, 7)]
    points = points_of(2)
    assert len(points) == 7

    def values(function: Any) -> dict[Any, Any]:
        return {p: function(*(own[choice] for own, choice in zip(sizes, p, strict=True))) for p in points}

    for function, text in [
        (lambda a, b: 7, "7"),
        (lambda a, b: 0, "0"),
        (lambda a, b: 3 * a * b // 4 - b + 2, "3*s1*s2/4 - s2 + 2"),
        (lambda a, b: 100 - a, "-s1 + 100"),
    ]:
        found = polynomial(values(function), sizes)
        assert found is not None
        assert shown(found, ["s1", "s2"]) == text
    assert polynomial(values(lambda a, b: a * a), sizes) is None
    assert polynomial(values(lambda a, b: max(a, 20)), sizes) is None
    assert polynomial({(0,): 4, (1,): 8, (2,): 12}, [(8, 16, 24)]) == {(0,): Fraction(1, 2)}


def test_texts_are_one_where_their_numbers_are_expressions() -> None:
    def both(line: str) -> tuple[str, str]:
        texts = {(i,): line.format(n=n, part=1 / (4 * n), square=n * n) for i, n in enumerate((8, 12, 16))}
        return merged(texts, [(8, 12, 16)], ["n"], lambda line, point, other: f"{line} | {point} {other}")

    assert both("%8 = f8({n}, 8.5, {part}) Float32\nsame") == ("%8 = f8(n, 8.5, 1/(4*n)) Float32\nsame\n", "")
    assert both("({square})") == ("", "(64) | (1,) (144)")
    assert both("x{n}") == ("", "x8 | (1,) x12")


def test_every_point_counts() -> None:
    """A number that is right at the corners only is found out."""
    corners = set(product((0, 1), repeat=3))
    assert corners < set(points_of(3))
    assert len(points_of(3)) == 12


def test_a_compile_without_a_call_has_one_too(tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "net.py"
    text = SCRIPT.replace("CONSTRUCT", CONSTRUCT).replace("SIZES", "size, 16").partition("x = Tensor")[0]
    script.write_text(f"{text}net.compile(*net.get_inputs())\n")
    compile_target(str(script), CompileOptions(ranks=4, level=1, out=tmp_path / "out", only_ranks=(1,)))
    assert "# compiled with s1 = 4; s1 = 8; s1 = 12:\n" in (tmp_path / "out" / "symbolic_graph.txt").read_text()
    assert "unknown sizes are taken as (4, 16), (4, 16)" in capsys.readouterr().err

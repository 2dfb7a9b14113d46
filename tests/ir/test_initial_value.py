"""Initial values as data: slices equal the global tensor's, descriptions read back equal, damaged ones are refused."""

import hashlib
import json
import re
import resource
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mspc.commands.checkpoints import check_checkpoint, diff_checkpoints, show_checkpoint
from mspc.ir.diagnostics import LONGEST_LINE, ErrorGroup, Location, MspcError, excerpt, shown
from mspc.ir.files.parsing import indented, parsed_json, parsed_toml
from mspc.ir.graph import Node
from mspc.ir.initial_value import (
    Description,
    Diagonal,
    Distribution,
    Filled,
    NormalDistribution,
    TruncatedNormalDistribution,
    UniformDistribution,
    exact_in,
    read_description,
)
from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, TensorType
from mspc.ops.math.elementwise import Exp
from mspc.plans.files.plan_file import read_plan
from mspc.search.calibration.machine_file import read_machine

DISTRIBUTIONS: list[Distribution] = [
    Filled(0.1), Filled(True), Filled(-3), Filled(float("-inf")), Diagonal(), NormalDistribution(0.02, 0.5),
    UniformDistribution(0.07), TruncatedNormalDistribution(1.0, 0.0, -2.0, 2.0),
]  # fmt: skip


LARGE = [(d, (700, 1100)) for d in DISTRIBUTIONS]
"""A number of elements in several blocks."""


@pytest.mark.parametrize(("distribution", "shape"), [*((d, (6, 8)) for d in DISTRIBUTIONS), *LARGE], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_slices_are_parts_of_the_whole(distribution: Distribution, shape: tuple[int, int], dtype: Any) -> None:
    value = Description(distribution, shape, dtype, seed=3, counter=5, zero_row=2)
    whole = value.fill()
    assert (whole.shape, whole.dtype) == (shape, dtype.numpy)
    assert not whole[2].any()
    rows, columns = shape
    joined = np.concatenate([value.fill((slice(0, rows), slice(i, i + columns // 4))) for i in _starts(columns)], 1)
    np.testing.assert_array_equal(joined, whole)
    middle = (slice(1, rows // 2), slice(3, 7))
    np.testing.assert_array_equal(value.fill(middle), whole[middle])
    assert value.fill(middle).flags.writeable


def _starts(columns: int) -> range:
    return range(0, columns, columns // 4)


def test_zeros_are_memory_that_nothing_has_touched() -> None:
    """Moments of optimizers are as large as the parameters: to write zeros over them takes seconds at a start."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("there is no list of pages")
    before = int(pages.read_text().split()[1])
    zeros = Description(Filled(0.0), (1 << 24,), FLOAT32).fill()
    touched = int(pages.read_text().split()[1]) - before
    assert touched * resource.getpagesize() < zeros.nbytes // 2
    assert not zeros.any()


def test_negative_zeros_keep_their_sign() -> None:
    assert np.signbit(Description(Filled(-0.0), (2,), BFLOAT16).fill().astype(np.float32)).all()


def test_tensors_of_more_dimensions_and_none() -> None:
    value = Description(NormalDistribution(1.0, 0.0), (3, 5, 800, 300), FLOAT32, 1, 2)
    part = (slice(1, 3), slice(2, 4), slice(100, 700), slice(7, 9))
    np.testing.assert_array_equal(value.fill(part), value.fill()[part])
    assert Description(NormalDistribution(1.0, 0.0), (), FLOAT32).fill(()).shape == ()
    assert Description(UniformDistribution(1.0), (0, 4), FLOAT32).fill().shape == (0, 4)


@pytest.mark.parametrize(
    ("distribution", "counter", "digest"),
    [
        (NormalDistribution(0.01, 0.0), 1, "9c5449cdf6e1"),
        (UniformDistribution(0.07), 3, "714df8390e14"),
        (TruncatedNormalDistribution(0.01, 0.0, -2.0, 2.0), 5, "e92b359c9699"),
    ],
)
def test_the_numbers_stay_the_same(distribution: Distribution, counter: int, digest: str) -> None:
    """Losses of networks depend on them."""
    values = Description(distribution, (1100, 600), FLOAT32, 3, counter).fill()
    assert hashlib.sha256(values.tobytes()).hexdigest()[:12] == digest


def test_a_slice_needs_no_more_memory_than_itself_and_a_block() -> None:
    value = Description(NormalDistribution(1.0, 0.0), (8192, 4096), FLOAT32)
    tracemalloc.start()
    value.fill((slice(1024, 2048), slice(0, 4096)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 2**20 + 8 * 2**20


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_description_reads_back_equal(distribution: Distribution) -> None:
    value = Description(distribution, (4, 4), FLOAT32, 7, 8, 1)
    entry = json.loads(json.dumps(value.entry(), allow_nan=False))
    found = read_description(entry, (4, 4), FLOAT32)
    np.testing.assert_array_equal(found.fill(), value.fill())
    assert found.entry() == entry


NORMAL = {"initializer": "Normal", "sigma": 0.02, "mean": 0.0, "seed": 0, "counter": 3}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "it is NoneType, not an object"),
        ([], "it is list, not an object"),
        ({}, "unknown initializer None; known are Constant, Identity, Normal, Uniform, TruncatedNormal"),
        (NORMAL | {"initializer": "normal"}, "unknown initializer 'normal'; known are"),
        (NORMAL | {"initializer": ["Normal"]}, r"unknown initializer \['Normal'\]; known are"),
        (NORMAL | {"sigma": "0.02"}, "sigma is '0.02', not a finite number"),
        (NORMAL | {"sigma": True}, "sigma is True, not a finite number"),
        (NORMAL | {"sigma": float("nan")}, "sigma is nan, not a finite number"),
        (NORMAL | {"sigma": 10**400}, "makes no Float32: one of its numbers is no Float64"),
        (NORMAL | {"mean": None}, "mean is None, not a finite number"),
        (NORMAL | {"seed": -1}, "seed is -1, not an integer from 0 to 4294967295"),
        (NORMAL | {"seed": 2**32}, "seed is 4294967296, not an integer"),
        (NORMAL | {"seed": None}, "seed is None, not an integer"),
        (NORMAL | {"counter": 1.0}, "counter is 1.0, not an integer"),
        (NORMAL | {"counter": False}, "counter is False, not an integer"),
        (NORMAL | {"scale": 1}, "the initializer Normal has no 'scale'"),
        ({"initializer": "Normal", "sigma": 1.0, "mean": 0.0}, "the initializer Normal lacks 'seed'"),
        ({"initializer": "Uniform", "seed": 0, "counter": 0}, "the initializer Uniform lacks 'scale'"),
        ({"initializer": "Constant", "value": "zero"}, "value is 'zero', not a number"),
        ({"initializer": "Constant", "value": [0]}, r"value is \[0\], not a number"),
        ({"initializer": "Constant", "value": 0, "seed": 0}, "the initializer Constant has no 'seed'"),
        ({"initializer": "Constant", "value": 10**400}, "00 is no number of Float32"),
        ({"initializer": "Identity"}, r"Identity makes matrices, not a tensor of shape \(8,\)"),
        (NORMAL | {"zero_row": 8}, "has no row 8 to be zero"),
        (NORMAL | {"zero_row": -1}, "zero_row is -1, not an integer"),
        (
            {"initializer": "TruncatedNormal", "sigma": 1, "mean": 0, "a": 2, "b": -2, "seed": 0, "counter": 0},
            "from 2 to -2 deviations there is next to no value to draw",
        ),
        (
            {"initializer": "TruncatedNormal", "sigma": 1, "mean": 0, "a": 50, "b": 60, "seed": 0, "counter": 0},
            "from 50 to 60 deviations there is next to no value to draw",
        ),
    ],
)
def test_damaged_descriptions_are_refused(entry: Any, message: str) -> None:
    with pytest.raises((MspcError, ValueError), match=message):
        read_description(entry, (8,), FLOAT32)


def test_a_value_that_the_element_type_cannot_hold_is_refused() -> None:
    with pytest.raises(MspcError, match="300 is no number of Int8"):
        Description(Filled(300), (2,), INT8).fill()
    assert Description(Filled(1), (2,), BOOL).fill().tolist() == [True, True]


def test_what_may_be_made_in_another_element_type() -> None:
    """Where values are rounded once, casting them afterwards gives the same."""
    normal = Description(NormalDistribution(1.0, 0.0), (4,), FLOAT32)
    assert exact_in(normal, BFLOAT16)
    assert not exact_in(Description(NormalDistribution(1.0, 0.0), (4,), FLOAT16), FLOAT32)
    assert exact_in(Description(Filled(0), (4,), FLOAT16), FLOAT32)
    assert not exact_in(Description(Filled(0.1), (4,), FLOAT16), FLOAT64)
    assert exact_in(Description(Filled(float("nan")), (4,), FLOAT32), FLOAT16)
    assert exact_in(Description(Filled(2.5), (4,), FLOAT32), INT32)


CALL = "ops.concat((x, self.w), 7)"
LINES = (
    f"return {CALL}",
    f"        return self.first(self.second(self.third(self.fourth(x)))) + self.fifth(y) + {CALL} + self.sixth(x)",
    f"        größe = '漢字漢字'; return self.relu({CALL}) + self.relu(self.relu(self.relu(self.relu(x))))",
    f"        name = 'e\u0301e\u0301'; return {CALL}",
)


def cells(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def under(lines: list[str]) -> str:
    """The text above the carets of a terminal."""
    text, carets = lines
    begin, end = len(carets) - len(carets.lstrip()), len(carets)
    return "".join(c for i, c in enumerate(text) if begin <= cells(text[:i]) < end)


@pytest.mark.parametrize("width", [None, 120, 80, 60])
@pytest.mark.parametrize("line", LINES)
def test_carets_stand_below_the_call(line: str, width: int | None) -> None:
    begin = line.index(CALL) + 1
    lines = excerpt(line, begin, begin + len(CALL), width)
    assert under(lines) == CALL
    assert width is None or max(map(cells, lines)) < width
    if width is None:
        assert lines[0].strip() == line.strip()


def test_what_is_longer_than_a_terminal_is_shown_from_its_beginning() -> None:
    line = f"    x = call({'argument, ' * 50})"
    lines = excerpt(line, 9, len(line) + 1, 80)
    assert under(lines).startswith("call(argument, ")
    assert lines[0].endswith("...")
    assert max(map(len, lines)) < 80
    lines = excerpt("x" * 5000, 4000, 4001)
    assert under(lines) == "x"
    assert len(lines[0]) <= LONGEST_LINE + 4


def test_texts_are_broken_at_spaces_on_a_terminal_alone() -> None:
    error = MspcError(
        "MatMul 'matmul': dimension 0 of input 1 is sharded into 2 slices, but dimension 1 of input 0 into 4",
        Location("net.py", 3, 5, 10, "    x = y"), notes=["shard both into 4, or both into 2, " * 4],
    )  # fmt: skip
    whole = error.render().splitlines()
    assert str(error).splitlines() == whole
    for text in (error, ErrorGroup([error, error])):
        lines = text.render(60).splitlines()
        assert max(map(len, lines)) <= 60
        assert " ".join(" ".join(lines).split()).startswith(whole[0])
    assert lines[1].startswith("    ")


def labelled(*parts: str) -> str:
    node = Node(Exp(), [], TensorType(FLOAT32, ()))
    node.attrs["fused"] = parts
    return node.label


def test_parts_are_named_while_they_can_be_read() -> None:
    assert labelled("Add", "Exp 'exp'") == "Exp of Add, Exp 'exp'"
    assert labelled("x" * 1000) == f"Exp of {'x' * 1000}"
    assert labelled("x" * 300, "y" * 100, "z") == f"Exp of {'x' * 300}, {'y' * 100} and 1 more"
    assert labelled(*["part"] * 1000) == f"Exp of {', '.join(['part'] * 100)} and 900 more"


HOSTILE = "w\x1b[2J\x1b]0;title\x07\r\nrank 0 \x9b31m\u202eevil\x00"


def harmless(text: str) -> bool:
    return all(c == "\n" or (c.isprintable() and c not in "\u202e") for c in text)


def test_control_characters_are_escaped() -> None:
    assert shown("plain, größer, 😀") == "plain, größer, 😀"
    assert shown("a\x1b[1mb\nc\td\x9b\u2028\u202e") == r"a\x1b[1mb\nc\td\x9b\u2028\u202e"
    assert shown("a\n\tb\r\x1b", lines=True) == "a\n\tb" + r"\r\x1b"
    assert shown("\ud800") == r"\ud800"


def test_checkpoints_with_hostile_names(tmp_path: Path, capsys: Any) -> None:
    ones = np.ones(2, np.float32)
    save_file({HOSTILE: ones}, tmp_path / "a.safetensors", {"mspc": json.dumps({"texts": {HOSTILE: HOSTILE}})})
    save_file({f"{HOSTILE}2": ones}, tmp_path / "b.safetensors")
    show_checkpoint(tmp_path / "a.safetensors", None, None)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 4  # title, headings, a row, and the text
    assert harmless(said)
    assert diff_checkpoints((tmp_path / "a.safetensors", tmp_path / "b.safetensors"), (None, None), None) == 1
    assert check_checkpoint(tmp_path / "a.safetensors", None, None) == 0
    assert harmless(capsys.readouterr().out)


@pytest.mark.parametrize(("text", "message"), [
    ("[" * 100_000, "brackets stand too deep in brackets"),
    ('{"a": {"b": 1, "c": 2, "b": 3}}', "it has an entry 'b' twice"),
    (b"\xff", "it is not text in UTF-8"),
    (b" \n", "it is empty"),
    ("9" * 5000, "Exceeds the limit"),
])  # fmt: skip
def test_json_that_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed_json(text)


def test_files_of_other_editors() -> None:
    """With the mark of UTF-8 before it, and the ends of lines of Windows."""
    assert parsed_json(b'\xef\xbb\xbf{"a":\r\n1}') == {"a": 1}
    assert parsed_toml(b'\xef\xbb\xbfa = 1\r\nb = """x\r\ny"""\r\n') == {"a": 1, "b": "x\ny"}
    with pytest.raises(ValueError, match="it is not text in UTF-8"):
        parsed_toml("a = 'Größe'".encode("latin-1"))


@pytest.mark.parametrize("read", [read_machine, read_plan])
def test_brackets_in_brackets_of_toml(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("name = " + "[" * 9999)
    with pytest.raises(MspcError, match=re.escape(f"{path} is no TOML file: brackets stand too deep in brackets")):
        read(path)


TEXTS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
CONTENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5) | st.tuples(inner),
    max_leaves=25,
)


@settings(deadline=None, max_examples=30)
@given(CONTENTS)
def test_the_text_is_that_of_json(content: Any) -> None:
    assert indented(content) == json.dumps(content, indent=1)

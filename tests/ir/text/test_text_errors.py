"""Bad text gives one message with its line, never another exception."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mspc.ir.diagnostics import LONGEST_LINE, Location, MspcError
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_module
from tests.dumps import module_difference
from tests.ir.graphs import OPERATORS, SMALL_TEXT

EXPECTED = [
    ("%para2_net.w)", "%99)", "net.ir:14:31: error: unknown value %99"),
    ("  %1 = Pair", "  %0 = Pair", "net.ir:19:3: error: %0 stands twice"),
    (": (<Tensor[Float32], (8, 32)>, ", ": (<Tensor[Float32], (8, 33)>, ",
     "net.ir:15:7: error: input 0 of Product 'matmul' is <Tensor[Float32], (8, 32)>, "
     "but the line of types says <Tensor[Float32], (8, 33)>"),
    (": (<Tensor[Float32], (8, 32)>, ", ": (<Tensor[Float31], (8, 32)>, ",
     "net.ir:15:10: error: unknown element type Float31; known are Bool, Int8, Int16, Int32, Int64, "
     "UInt8, UInt16, UInt32, UInt64, Float8E4M3, Float8E5M2, Float16, BFloat16, Float32, Float64, Complex64, "
     "Complex128"),
    ("transpose_a: false, ", "",
     "net.ir:14:86: error: Product lacks the attribute 'transpose_a'\n"
     "  note: its attributes are: transpose_a, transpose_b"),
    ("transpose_a: false", "transpose_a: 0", "net.ir:14:86: error: Product: attribute 'transpose_a' is 0, not bool"),
    ("transpose_a: false", "transposed: true, transpose_a: false",
     "net.ir:14:86: error: Product has no attribute 'transposed'\n"
     "  note: its attributes are: transpose_a, transpose_b"),
    ('mode: "sum"', 'mode: "median"', "net.ir:24:35: error: Total cannot have these attributes: mode median"),
    ("axis: (0, 1)", "axis: (0, 1",
     "net.ir:24:56: error: unexpected ': 1e-05, dtype: Float32,'\n  note: expected one of ')', ','"),
    ("(2, 4) [0, -] sum[1]}\n", "(2, 4) [0, 2]}\n", "net.ir:14:242: error: the mesh (2, 4) has no axis 2"),
    ("(2, 4) [0, -] sum[1]}\n", "(2, 4) [0]}\n",
     "net.ir:14:242: error: the layout (2, 4) [0] has 1 dimensions, the tensor 2"),
    ("{gradient_of: %0.0}", "{gradient_of: %7.0}", "net.ir:24:207: error: unknown node %7"),
    ("%para3_table", "%para4_table",
     "net.ir:11:1: error: %para4_table should be %para3_table: parameters are numbered in order"),
    ("#Total params  : 3", "#Total params  : 4",
     "net.ir:7:2: error: the header says 'Total params: 4', but the file has 3"),
    ("#IR entry      : @net", "#IR entry      : @nets",
     "net.ir:1:2: error: the entry is @nets, but there is no such graph"),
    ("value=0.5", "value=half", "net.ir:19:17: error: half is no value of a constant"),
    ("shape=[], dtype", "shape=[9999999999999], dtype",
     "net.ir:19:17: error: a constant of shape (9999999999999,) is too large for a file"),
    ("\n  Return", "\n  Retrun",
     "net.ir:26:3: error: unexpected 'Retrun((%1, %2))'\n"
     "  note: expected one of comments, node head, return, return tuple"),
    ("ranks : 8", "ranks : 8 9", "net.ir:6:11: error: unexpected '9'\n  note: expected the end"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "bad", "message"), EXPECTED, ids=[message for _, _, message in EXPECTED])
def test_message_names_place_and_mistake(good: str, bad: str, message: str) -> None:
    assert SMALL_TEXT.count(good) >= 1
    with pytest.raises(MspcError) as caught:
        parse(SMALL_TEXT.replace(good, bad, 1), OPERATORS, "net.ir")
    shown = [line for line in str(caught.value).split("\n") if not line.startswith("    ")]
    assert "\n".join(shown) == message


@pytest.mark.parametrize("text", ["", "#IR entry      : @net\n", "# only a remark"])
def test_file_without_a_graph_is_refused(text: str) -> None:
    with pytest.raises(MspcError, match="the file holds no graph"):
        parse(text, OPERATORS)


def survives(text: str) -> bool:
    """Whether damaged text is still a module, which reads back equal; else it is refused with its line."""
    refusal = None
    try:
        module = parse(text, OPERATORS, "damaged.ir")
    except MspcError as error:
        refusal = error
    if refusal is None:
        assert module_difference(module, parse(print_module(module), OPERATORS)) == ""
        return True
    assert refusal.location is not None
    assert 1 <= refusal.location.line <= text.count("\n") + 1
    assert str(refusal).startswith(f"damaged.ir:{refusal.location.line}:")
    return False


def test_cut_file_is_refused() -> None:
    whole = SMALL_TEXT.rstrip()
    assert [end for end in range(len(whole)) if survives(whole[:end])] == []


@pytest.mark.parametrize("seed", range(4))
def test_mutated_text_is_refused_or_sound(seed: int) -> None:
    made = random.Random(seed)
    outcomes = [survives(mutated(SMALL_TEXT, made)) for _ in range(200)]
    assert outcomes.count(False) > 50


@pytest.mark.parametrize("name", ["quickstart_semi.execute", "layout_mlp.begin", "conv_auto.execute"])
def test_mutated_dump_is_refused_or_sound(conformance: Path, name: str) -> None:
    text = (conformance / "dumps" / f"{name}.ir").read_text("utf-8")
    made = random.Random(name)
    outcomes = [survives(mutated(text, made)) for _ in range(60)]
    assert outcomes.count(False) > 5


def mutated(text: str, made: random.Random) -> str:
    """The text after one to three small damages."""
    for _ in range(made.randint(1, 3)):
        at = made.randrange(len(text))
        kind = made.randrange(5)
        if kind == 0:
            text = text[:at] + made.choice("()[]{}<>%@\"\\,:;.0189ab -~\n#=$'é\x00") + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + text[at + made.randint(1, 9) :]
        elif kind == 2:
            text = text[:at] + made.choice("()[]{}<>%\",: \n") * made.randint(1, 3) + text[at:]
        elif kind == 3:
            start = made.randrange(len(text))
            text = text[:at] + text[start : start + made.randint(1, 30)] + text[at:]
        else:
            lines = text.split("\n")
            i, j = made.randrange(len(lines)), made.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
            text = "\n".join(lines)
    return text


def test_of_a_long_line_what_stands_around_the_mistake_is_shown() -> None:
    where = Location("net.ir", 1, 5001, 5003, "a" * 5000 + "bb" + "c" * 5000)
    _, line, carets = str(MspcError("wrong", location=where)).split("\n")
    assert len(line) == 4 + LONGEST_LINE
    assert line[carets.index("^") :].startswith("bbc")
    assert carets.strip() == "^^"

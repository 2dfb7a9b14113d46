"""Bad text gives one message with its line, never another exception."""

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import LONGEST_LINE, Location, MspcError
from mspc.ir.text.fragments import parse_text, read_attributes, read_layouts, read_type, read_value
from mspc.ir.text.own_lines import alone_value, plain_attributes, plain_layout, plain_tensor_type, plain_tuple_type
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_module
from mspc.ir.text.source_text import Malformed
from tests.dumps import module_difference
from tests.errors import error_of
from tests.ir.graphs import OPERATORS, SMALL_TEXT
from tests.serving import succeed

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
    error = error_of(parse, SMALL_TEXT.replace(good, bad, 1), OPERATORS, "net.ir")
    shown = [line for line in str(error).split("\n") if not line.startswith("    ")]
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


ONE = """#attrs         :
{attribute}
#Total params  : 1

%para1_x: <Tensor[Float32], (8)>{parameter}

subgraph @main() {{
  %0 = Foo(%para1_x) {groups}
      : (<Tensor[Float32], (8)>) -> ({type})
  Return(%0)
      : ({type})
}}
"""


def one(attribute: str = "", parameter: str = "", groups: str = "", type: str = "<Tensor[Float32], (8)>") -> str:
    return ONE.format(attribute=attribute, parameter=parameter, groups=groups, type=type)


def refusal(text: str) -> str:
    error = error_of(parse, text, OPERATORS, "net.ir")
    assert error.exit_status == 2
    assert error.location is not None
    return error.message


@pytest.mark.parametrize("depth", [33, 400, 20000])
@pytest.mark.parametrize("place", ["attribute", "groups"])
def test_deep_brackets_are_refused(depth: int, place: str) -> None:
    nested = "(" * depth + ")" * depth
    text = one(attribute=f"a : {nested}") if place == "attribute" else one(groups=f"primitive_attrs: {{a: {nested}}}")
    assert refusal(text) == "brackets stand more than 32 deep in brackets"


@pytest.mark.parametrize("depth", [33, 400])
def test_deep_layouts_are_refused(depth: int) -> None:
    assert "brackets" in refusal(one(groups=f"{{layout: {'(' * depth}none{')' * depth}}}"))


@pytest.mark.parametrize("group", ["{layout: (2, 999999999) [0]}", "primitive_attrs: {a: Layout(2, 999999999) [0]}"])
def test_countless_ranks_of_a_layout_are_refused(group: str) -> None:
    assert refusal(one(groups=group)) == "the mesh (2, 999999999) has more than 1048576 ranks"


@pytest.mark.parametrize("text", ["0:1048577:1", "0:999999999999:2", "0:-1048577:-1", "5:6:0"])
def test_long_lists_are_refused(text: str) -> None:
    assert refusal(one(attribute=f"a : {text}")) == f"{text} is no list start:stop:step of at most 1048576 integers"


def test_a_tuple_of_countless_tensors_is_refused() -> None:
    message = "the tuple has 999999999 elements but 1 shapes"
    assert refusal(one(type="<Tuple[Tensor[Float32]*999999999], TupleShape((8))>")) == message


@pytest.mark.parametrize("shape", ["(4294967296, 4294967296)", "(0, 4611686018427387904)"])
def test_shapes_beyond_any_memory_are_refused(shape: str) -> None:
    message = f"the shape {shape} has more elements than any memory holds"
    assert refusal(one(type=f"<Tensor[Float32], {shape}>")) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ranks : 0", "ranks is 0, not an integer from 1 to 1048576"),
        ("ranks : -2", "ranks is -2, not an integer from 1 to 1048576"),
        ("ranks : 1000000000000", "ranks is 1000000000000, not an integer from 1 to 1048576"),
        ("ranks : true", "ranks is True, not an integer from 1 to 1048576"),
        ('ranks : "2"', "ranks is '2', not an integer from 1 to 1048576"),
        ("rank : -1", "rank is -1, not an integer from 0 to 1048575"),
        ("mode : 3", "mode is 3, not a string"),
        ("gradients_mean : 1", "gradients_mean is 1, not true or false"),
        ("gradient_bucket : (1, 2)", "gradient_bucket is (1, 2), not an integer of at least 0"),
    ],
)
def test_facts_of_the_header_have_their_kind(line: str, message: str) -> None:
    assert refusal(one(attribute=line)) == message


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("fused: 3", "fused is 3, not a tuple of strings"),
        ("fused: (1, 2)", "fused is (1, 2), not a tuple of strings"),
        ("unused: 1", "unused is 1, not true or false"),
        ("gradient_for: (1, 2)", "gradient_for is (1, 2), not a string"),
        ("phase: sideways", "the phase is sideways, not forward or backward or update"),
    ],
)
def test_facts_of_nodes_have_their_kind(fact: str, message: str) -> None:
    assert refusal(one(groups=f"cnode_attrs: {{{fact}}}")) == message


def test_a_tuple_has_a_layout_for_every_tensor() -> None:
    tuple_type = "<Tuple[Tensor[Float32]*2], TupleShape((8), (8))>"
    text = one(groups="{layout: (2) [0]}", type=tuple_type)
    assert refusal(text) == "1 layouts for a tuple of 2 tensors"


def graphs(count: int) -> str:
    line = "%para{0}_x: <Tensor[Float32], (8)>\n"
    call = "  %{0} = Call() {{regions: @g{0}}}\n      : () -> (<Tuple[], TupleShape()>)\n"
    graph = "subgraph @g{0}(%para{1}_x) {{\n  Return(%para{1}_x)\n      : (<Tensor[Float32], (8)>)\n}}\n"
    main = "\nsubgraph @main() {\n" + "".join(call.format(i) for i in range(count)) + "  Return()\n}\n"
    return line.format(1) + main + "\n".join(line.format(i + 2) + graph.format(i, i + 2) for i in range(count))


VALUES = ("0", "-5", "007", "(0)", "()", "(1, -2)", "true", "false", "Float16", "Bool", "-0", "1.5", "1.0e-05", "1.",
          "12345678901234567890", "1e-08", '"gelu"', '""', '"a b_c-1.5"', '("Mul(x0, x1)")', "None",
          "((1, 2), (3), ())", "(1, 2.5, \"a\", x)", "none", "constant",
          '("", "Cast(x0, dst_type=Float32)", ", ")', '"\\n"', '"a\\"b"', '("\\n")', '"\\q"')  # fmt: skip
OTHERS = ("(1,2)", "inf", "nan", "-inf", "1" * 41, "0:8:2", "I64(3)", "1-2", "(" * 9 + ")" * 9, "a.b",
          "Tensor(shape=[], dtype=Int32, value=1)", "Layout(2) [0]", "<Tensor[Int8], (2)>", "[1, 2]", "{}", "@name",
          '("a","b")', '`"a"', "a[1]")  # fmt: skip
TYPES = ("<Tensor[Float32], ()>", "<Tensor[Int8], (2, 0)>", "<Ref[Tensor[Int8]], (2, 3)>",
         "<Tuple[Tensor[Int8]], TupleShape((2))>", "<Tuple[Tensor[Int8]*2,Tensor[Bool]], TupleShape((2), (), (3, 4))>",
         "<Tuple[Tensor[Int8], Tensor[Bool]], TupleShape((2), ())>")  # fmt: skip
LAYOUTS = ("(2, 4) [0, -]", "(8) []", "(2, 2, 2) [0.1, 2]", "(2, 4) [-, 1] sum[0]", "(2, 2) [-] max[0, 1]")


@pytest.mark.parametrize("text", VALUES)
def test_plain_values_are_those_of_the_grammar(text: str) -> None:
    found, expected = alone_value(text), parse_text(text, "value")
    assert found == (expected,)
    assert repr(found) == repr((expected,))


@pytest.mark.parametrize("text", OTHERS)
def test_all_else_is_left_to_the_grammar(text: str) -> None:
    assert alone_value(text) is None
    assert plain_attributes(f"{{a: {text}}}") is None


@pytest.mark.parametrize("text", TYPES)
def test_plain_types_are_those_of_the_grammar(text: str) -> None:
    assert plain_tensor_type(text) or plain_tuple_type(text)
    found, expected = read_type(text), parse_text(text, "type")
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("text", LAYOUTS)
def test_plain_layouts_are_those_of_the_grammar(text: str) -> None:
    assert plain_layout(text)
    assert read_layouts(f"{text}; none") == (*parse_text(text, "layouts"), None)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_type, "<Tensor[Int9], (2)>", "unknown element type Int9"),
        (read_type, "<Tensor[Int8], (99999999999, 99999999999)>", "has more elements than any memory holds"),
        (read_type, "<Tuple[Tensor[Int8]*2], TupleShape((2))>", "the tuple has 2 elements but 1 shapes"),
        (read_type, "<Tuple[Tensor[Int8]*0], TupleShape((2))>", "the tuple has 0 elements but 1 shapes"),
        (read_layouts, "(2, 4) [0, 2]", "the mesh (2, 4) has no axis 2"),
        (read_layouts, "(2, 4) [0] sum[0]", "a mesh axis is used twice"),
        (read_layouts, "(2, 0) [0]", "has an axis of size 0"),
        (read_attributes, "{a: 1, a: 2}", "the attribute 'a' stands twice"),
        (read_value, "1, 2", "unexpected ', 2'"),
    ],
)
def test_mistakes_are_those_of_the_grammar(read: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        read(text)


STEP = """
import mspc as ms
from mspc import nn
ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU")
net = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8), nn.LayerNorm((8,)), nn.Dense(8, 4))
optimizer = ms.mint.optim.AdamW(net.trainable_params(), 1e-3)
gradients = ms.value_and_grad(nn.WithLossCell(net, nn.MSELoss()), None, optimizer.parameters)

@ms.jit
def step(x, y):
    loss, found = gradients(x, y)
    optimizer(found)
    return loss

step(ms.ops.zeros((16, 8)), ms.ops.zeros((16, 4)))
"""


@pytest.mark.parametrize("for_gpu", [False, True])
def test_a_compile_needs_no_grammar(root: Path, tmp_path: Path, for_gpu: bool) -> None:
    script = root / "samples" / "quickstart" / "net.py"
    if for_gpu:
        script = tmp_path / "step.py"
        script.write_text(STEP)
    compile_it = (
        "import sys; from mspc.commands.compile import CompileOptions, compile_target; from pathlib import Path;"
        "from mspc.ir.text.fragments import grammar;"
        f"compile_target({str(script)!r}, CompileOptions(ranks={1 if for_gpu else 8},"
        f" out=Path({str(tmp_path / 'out')!r})));"
        "print(grammar.cache_info().currsize, sorted({'networkx', 'rich', 'mpi4py'} & set(sys.modules)))"
    )
    done = succeed(sys.executable, "-c", compile_it)
    assert done.stdout.splitlines()[-1] == "0 []"

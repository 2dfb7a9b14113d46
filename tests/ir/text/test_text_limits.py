"""Text that asks for more than a reader has: deep, long and huge."""

from __future__ import annotations

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.text.parser import parse
from tests.ir.graphs import OPERATORS

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
    with pytest.raises(MspcError) as raised:
        parse(text, OPERATORS, "net.ir")
    assert raised.value.exit_status == 2
    assert raised.value.location is not None
    return raised.value.message


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

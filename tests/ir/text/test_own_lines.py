"""Files that mspc wrote are split into the parts into which the grammar splits them."""

from typing import Any

import pytest
from hypothesis import given, settings

from mspc.ir.text.fragments import parse_text
from mspc.ir.text.own_lines import own_items
from tests.graphs import Constant, Graph, print_graph
from tests.ir.graphs import SMALL_TEXT, graphs, programs
from tests.shares import share_of


def plain(item: Any) -> Any:
    """An item as what can be compared, tokens with their kind and place."""
    if getattr(item, "data", "") == "attribute_line":
        return plain(item.children[0])
    if isinstance(item, list):
        return [plain(each) for each in item]
    if isinstance(item, Constant):
        return item.type, item.value.tobytes()
    return (item.type, str(item), item.start_pos) if hasattr(item, "start_pos") else item


def assert_as_by_grammar(text: str) -> None:
    found = own_items(text)
    assert found is not None
    assert plain(found) == plain(parse_text(text, "module").children)


@settings(max_examples=share_of(100), deadline=None)
@given(graphs())
def test_random_graphs_are_split_as_by_the_grammar(graph: Graph) -> None:
    text = print_graph(graph)
    found = own_items(text)
    assert found is None or plain(found) == plain(parse_text(text, "module").children)


@settings(max_examples=share_of(50), deadline=None)
@given(programs())
def test_random_graphs_with_regions_are_split_as_by_the_grammar(graph: Graph) -> None:
    text = print_graph(graph)
    found = own_items(text)
    assert found is None or plain(found) == plain(parse_text(text, "module").children)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  %1 = ", "  %1 "), ("Return(", "Return (("), ("subgraph @", "subgraph"), ("}\n", "\n"), (" -> (", " => ("),
        ("has_default", "has_no_default"), ("primitive_attrs: {", "primitive_attrs: {{"), ("%para1", "%para"),
        ("shape=[]", "shape=[x]"),
    ],
)  # fmt: skip
def test_other_lines_are_left_to_the_grammar(old: str, new: str) -> None:
    assert_as_by_grammar(SMALL_TEXT)
    assert old in SMALL_TEXT
    assert own_items(SMALL_TEXT.replace(old, new, 1)) is None


def test_files_of_mindspore_are_left_to_the_grammar() -> None:
    assert own_items(SMALL_TEXT + "\njit config {\n}\n") is None

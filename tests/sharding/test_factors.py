"""Factor rules: parsing, shapes, layouts, messages."""

import pytest

from mspc.ir.layout import Layout
from mspc.sharding.rules import parse_rule
from tests.errors import error_of


def test_matrix_product_reduces_its_inner_factor() -> None:
    rule = parse_rule("m k, k n -> m n", [(16, 32), (32, 16)])
    assert rule.output_shapes() == ((16, 16),)
    assert [rule.names[f] for f in rule.reduced] == ["k"]
    ins, outs = rule.layouts((2, 4), [(0,), (1,), ()])
    assert ins == (Layout.of((2, 4), [(0,), (1,)]), Layout.of((2, 4), [(1,), ()]))
    assert outs == (Layout.of((2, 4), [(0,), ()], (1,)),)


def test_dimension_of_two_factors() -> None:
    rule = parse_rule("(a b=2) c -> a (b c)", [(64, 32)])
    assert rule.output_shapes() == ((32, 64),)
    assert str(rule) == "(a b) c -> a (b c)"


def test_scalars_and_broadcasts() -> None:
    assert parse_rule("a b,  -> a b", [(4, 8), ()]).output_shapes() == ((4, 8),)
    assert parse_rule("a b, 1 b -> a b", [(4, 8), (1, 8)]).inputs[1][0] == ()
    assert parse_rule("a b -> ", [(4, 8)]).output_shapes() == ((),)


def test_equal_rules_are_one_object() -> None:
    assert parse_rule("a! b -> a b", [(4, 8)]) is parse_rule("a! b -> a b", [(4, 8)])


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (
            "m k, k n -> m n",
            [(16, 32), (31, 16)],
            "MatMul: dimension 0 of input 1 is 31, but dimension 1 of input 0 says 32",
        ),
        ("m k, k n -> m n", [(16, 32)], "MatMul takes 2 tensors, not 1"),
        ("m k, k n -> m n", [(16, 32), (32,)], "MatMul needs 2 dimensions in input 1, whose shape is (32,)"),
    ],
)
def test_shapes_that_do_not_fit(text: str, shapes: list, message: str) -> None:
    assert error_of(parse_rule, text, shapes, "MatMul").message == message


def test_a_result_that_sums_what_it_lacks_is_partial_alone():
    rule = parse_rule("b s d, b t! d -> b s d, +b t! d, +d", [(2, 4, 8), (2, 6, 8)])
    assert str(rule) == "b s d, b t! d -> b s d, +b t! d, +d"
    _, (first, second, third) = rule.layouts((2, 2), [(0,), (1,), (), ()])
    assert (first, second, third) == (
        Layout.of((2, 2), [(0,), (1,), ()]),
        Layout.of((2, 2), [(0,), (), ()], (1,)),
        Layout.of((2, 2), [()], (0, 1)),
    )

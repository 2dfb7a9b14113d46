"""Expressions of sizes: both forms that exported programs have are read as data, computed and shown."""

from __future__ import annotations

import pytest

from mspc.readers.pytorch.exported_program import parsed, shown, symbols, value_of

SIZES = {"s0": 7, "s1": 3, "u0": 10}


@pytest.mark.parametrize(
    ("text", "form", "value"),
    [
        ("s0", "s0", 7),
        ("12", "12", 12),
        ("Symbol('s0', positive=True, integer=True)", "s0", 7),
        ("Mul(Integer(2), Symbol('s0', integer=True))", "2*s0", 14),
        ("Add(Mul(Integer(2), Symbol('s0')), Integer(1))", "2*s0 + 1", 15),
        ("2*(s0 + s1)", "2*(s0 + s1)", 20),
        ("s0 - s1", "s0 - 1*s1", 4),
        ("FloorDiv(Add(Symbol('s0'), Integer(-1)), Integer(4))", "(s0 - 1)//4", 1),
        ("s0 // -2", "s0//-2", -4),
        ("CeilDiv(s0, 2)", "CeilDiv(s0, 2)", 4),
        ("Mod(u0, s1)", "u0%s1", 1),
        ("s1**2", "s1**2", 9),
        ("Pow(Symbol('s1'), Integer(3))", "s1**3", 27),
        ("Max(1, s0 + s1, Min(s0, 20))", "Max(1, s0 + s1, Min(s0, 20))", 10),
        ("ModularIndexing(u0, 2, 3)", "ModularIndexing(u0, 2, 3)", 2),
        ("Rational(6, 3)", "6/3", 2),
        ("TruncToInt(IntTrueDiv(s0, 2))", "TruncToInt(s0/2)", 3),
        ("Float('0.5', precision=53)", "0.5", 0.5),
        ("Eq(s0, 7)", "s0 == 7", True),
        ("GreaterThan(Symbol('s1'), Integer(4))", "s1 >= 4", False),
        ("And(s0 > 2, Not(Ne(s1, 3)))", "And(s0 > 2, Not(s1 != 3))", True),
        ("true", "True", True),
    ],
)  # fmt: skip
def test_forms(text: str, form: str, value: float) -> None:
    found = parsed(text)
    assert value_of(found, SIZES) == value
    assert shown(found) == form
    assert type(value_of(found, SIZES)) is type(value)
    assert value_of(parsed(shown(found)), SIZES) == value


def test_symbols_are_found_in_order() -> None:
    assert list(symbols(parsed("Max(s1, 2*s0 + u0) + s1"))) == ["s1", "s0", "u0", "s1"]


@pytest.mark.parametrize(
    "text",
    ["", "__import__('os').system('true')", "s0.real", "s0[0]", "lambda: 1", "s0 if s1 else 2", "'text'", "s0 +",
     "Unknown(s0)", "(" * 500 + "1" + ")" * 500, "1+" * 9000 + "1", "max(s0, s1)", "Add(s0, x=1)", "1j", "[1]"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|arithmetic|computed by"):
        parsed(text)


@pytest.mark.parametrize("text", ["s0 // 0", "Mod(s0, 0)", "10**s0**s0", "Pow(0, -1)", "FloorDiv(s0)"])
def test_what_has_no_value_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no value"):
        value_of(parsed(text), SIZES)


def test_a_symbol_without_value() -> None:
    with pytest.raises(KeyError, match="s9"):
        value_of(parsed("s9 + 1"), SIZES)

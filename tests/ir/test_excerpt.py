"""Source lines in errors: as wide as a terminal, the carets below what they are about."""

from __future__ import annotations

import unicodedata

import pytest

from mspc.ir.diagnostics import LONGEST_LINE, ErrorGroup, Location, MspcError, excerpt

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

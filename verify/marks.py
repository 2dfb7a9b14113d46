"""The attribute that numbers operators before they are sharded, so that values of programs can be matched."""

MARK = "verify"


def mark_of_line(mark: object, line: int, lines: int) -> int | None:
    """The mark of a line of a fused operator, whose marks are those of its members: None where these, of which one may
    have been several lines itself, are not as many."""
    if isinstance(mark, tuple) and len(mark) == lines:
        found = mark[line]
        return found if isinstance(found, int) else None
    return None

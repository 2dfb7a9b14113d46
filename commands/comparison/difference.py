"""One thing that two compiles differ in."""

from __future__ import annotations

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in both. name: of it. cell: around it. first, second: what it is in each; None
    where it is in the other alone. why: the reasons that the texts give, the second's last."""

    name: str
    cell: str
    line: str
    first: str | None
    second: str | None
    why: tuple[str, ...] = ()

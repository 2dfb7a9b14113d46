"""These classes hold what is found in a script."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass

LACKS = "lacks"
"""mspc has no such name or argument: a script fails there."""
IGNORED = "ignored"
"""mspc takes it, and it changes nothing."""
NOTE = "note"
"""mspc lacks it, and the script is ready for that: under `try`, `hasattr` or a test of the version."""
UNREACHED = "unreached"
"""mspc lacks it, and the script does not come there: nothing that runs mentions the function around it."""
PLAIN = "plain"
"""mspc has it, without a kernel of its own for GPUs: it runs there through CuPy, in more launches."""
KINDS = (LACKS, IGNORED, NOTE, UNREACHED, PLAIN)


@dataclass(frozen=True)
class Finding:
    """One use. kind: of KINDS. name: in full, as `mindspore.ops.Foo` or `mindspore.nn.Dense(foo)`. file, line, column:
    where, from 1. instead: what to write, or why it changes nothing; "" where nothing is known."""

    kind: str
    name: str
    file: str
    line: int
    column: int
    instead: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        verbs = {IGNORED: "changes nothing here", PLAIN: "has no kernel of its own for GPUs"}
        verb = verbs.get(self.kind, "is not in mspc")
        return f"{self.place}: {self.name} {verb}{': ' if self.instead else ''}{self.instead}"


def lacking(findings: Sequence[Finding]) -> list[Finding]:
    """Those that make a script fail."""
    return [finding for finding in findings if finding.kind == LACKS]

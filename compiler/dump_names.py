"""The names of the files that dumps are written to."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.compiler.pipeline import FILE_NAMES, OPTIONAL, UNNUMBERED


def file_of(number: int, name: str) -> str:
    """The name of the dump of a pass, without its ending."""
    stem = FILE_NAMES.get(name, name)
    return stem if stem in UNNUMBERED else f"{number:02d}_{stem}"


class RankDumps:
    """The dumps of a rank's passes, which come in their order. first: the number of the first one. before: the pass
    ahead of it."""

    def __init__(self, names: Sequence[str], first: int, before: str) -> None:
        self._numbers: dict[str, int] = {}
        self._ahead: dict[str, str] = {}
        number = first - 1
        for name in names:
            self._ahead[name] = before
            if name not in OPTIONAL:
                number, before = number + 1, name
            self._numbers[name] = number

    def file_and_before(self, name: str, changed: bool) -> tuple[str, str] | None:
        """The file of a pass's dump, and the pass ahead of it. None where there is no dump: a pass of `OPTIONAL` that
        has changed nothing leaves no trace."""
        if name in OPTIONAL and not changed:
            return None
        before = self._ahead[name]
        if name in OPTIONAL:
            names = list(self._ahead)
            self._ahead[names[names.index(name) + 1]] = name
        return file_of(self._numbers[name], name), before

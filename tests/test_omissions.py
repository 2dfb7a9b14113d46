"""Additions are whole: an operator, a collective, a pass and a command each need more than their file.

Every test says what is missing and where it belongs. Entries that are left out on purpose stand in tests/omissions.toml
with their reason; an entry there for what is not left out, or is no more, fails too.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.verbs.table import VERBS
from mspc.ops.op import REGISTRY, Op, has_gpu_kernel
from mspc.passes.base import pass_names
from mspc.verify.pytorch.counterparts import COUNTERPARTS_OF_DRAWS, counterparts
from tests.ops.collective.every import cases

ROOT = Path(__file__).resolve().parent.parent
DATA = "tests/omissions.toml"
OPERATORS = {name: cls for name, cls in REGISTRY.items() if cls.__module__.startswith("mspc.ops.")}
SHAPE_A_GRAPH, FUSED = "mspc.ops.control.", "mspc.ops.fused."
"""Modules of operators that compute nothing by themselves, and of those that are several others."""


@cache
def excepted() -> dict[str, dict[str, list[str]]]:
    """By table and reason what is left out on purpose."""
    return tomllib.loads((ROOT / DATA).read_text(encoding="utf-8"))


def check(lacking: Iterable[str], table: str, remedy: str) -> None:
    """Hold what lacks something to its exceptions. remedy: what to add and where, for `{name}`."""
    lists = excepted()[table]
    known = [name for names in lists.values() for name in names]
    assert all(reason.strip() for reason in lists), f"{DATA}: [{table}] has an exception without a reason"
    assert len(set(known)) == len(known), f"{DATA}: [{table}] names something twice"
    found = sorted(set(lacking))
    new = [f"{name}: {remedy.format(name=name)}; or give the reason why not in {DATA}, [{table}]" for name in found
           if name not in known]  # fmt: skip
    assert not new, "\n".join(["something is left out:", *new])
    stale = [f"{name} is no exception (any more): take it out of {DATA}, [{table}]" for name in known
             if name not in found]  # fmt: skip
    assert not stale, "\n".join(["exceptions that do not apply:", *stale])


class AnyModule:
    """Stands for PyTorch where only the names of counterparts are asked for."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


def needs_no_judge(cls: type[Op]) -> bool:
    """Whether it draws, changes parameters, communicates, gives a graph its shape or is made by fusion."""
    return cls.is_collective or bool(cls.mutates or cls.seeds) or cls.__module__.startswith((SHAPE_A_GRAPH, FUSED))


def test_every_operator_has_a_kernel_for_gpus() -> None:
    lacking = [
        name for name, cls in OPERATORS.items()
        if not has_gpu_kernel(cls) and not cls.__module__.startswith(SHAPE_A_GRAPH)
    ]  # fmt: skip
    remedy = "runs on GPUs through CuPy alone: give it `cuda` or `launch` (CONTRIBUTING, recipe of an operator)"
    check(lacking, "without_gpu_kernel", remedy)


def test_every_operator_has_a_counterpart_in_pytorch() -> None:
    named = {*counterparts(AnyModule()), *COUNTERPARTS_OF_DRAWS}
    lacking = [name for name, cls in OPERATORS.items() if name not in named and not needs_no_judge(cls)]
    remedy = "`mspc verify --against torch` does not judge it: add a line to verify/pytorch/counterparts.py"
    check(lacking, "without_counterpart", remedy)


def test_every_collective_is_compared_with_numpy() -> None:
    tried = {case.op(0).name for case in cases((0, 1), 3, 5)}
    collectives = [name for name, cls in OPERATORS.items() if cls.is_collective]
    remedy = "no test compares it with NumPy: add a Case to `cases` in tests/ops/collective/every.py"
    check([name for name in collectives if name not in tried], "collective_without_case", remedy)


def test_every_collective_is_documented() -> None:
    text = (ROOT / "docs/reference/collectives.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE))
    collectives = {name for name, cls in OPERATORS.items() if cls.is_collective}
    new = [f"{name}: add its row to the table in docs/reference/collectives.md" for name in sorted(collectives - told)]
    assert not new, "\n".join(["something is left out:", *new])
    assert told <= collectives, f"docs/reference/collectives.md has unknown rows: {sorted(told - collectives)}"


def test_every_pass_has_a_golden() -> None:
    held = {case.parent.name for case in (ROOT / "tests/passes").glob("*/*/*.ir")}
    lacking = [name for name in pass_names() if name not in held]
    remedy = "no golden shows what it does: add tests/passes/ROOM/{name}/CASE.ir (CONTRIBUTING, recipe of a golden)"
    check(lacking, "pass_without_golden", remedy)
    assert held <= set(pass_names()), f"goldens of what is no pass: {sorted(held - set(pass_names()))}"


def test_every_command_has_a_row_in_its_page() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(?:mpirun [^`|]*)?mspc ([\w-]+)", text, re.MULTILINE))
    remedy = "add a row to the table in docs/reference/commands.md"
    check([verb.name for verb in VERBS if verb.name not in told], "command_without_row", remedy)
    assert told <= {verb.name for verb in VERBS}, "docs/reference/commands.md has rows of unknown commands"


def test_every_file_of_a_command_is_in_the_table() -> None:
    own = {verb.name.replace("-", "_") for verb in VERBS if not verb.home}
    files = {path.stem for path in (ROOT / "commands/verbs").glob("[a-z]*.py")} - {"table"}
    assert files <= own, f"add rows to VERBS in commands/verbs/table.py for {sorted(files - own)}"
    assert own <= files, f"commands/verbs has no file of {sorted(own - files)}"


@pytest.mark.parametrize("said", [{"a reason": ["Add"]}, {"a reason": ["Mul", "Mul"]}, {" ": ["Mul"]}, {}])
def test_lists_of_exceptions_are_held_to_what_there_is(said: dict[str, list[str]], monkeypatch: Any) -> None:
    """One for what is not left out, one twice, one without a reason, none for what is left out."""
    monkeypatch.setitem(excepted(), "a table", said)
    with pytest.raises(AssertionError, match=r"Add is no exception|twice|without a reason|Mul: add it there; or give"):
        check(["Mul"], "a table", "add it there")
    monkeypatch.setitem(excepted(), "a table", {"a reason": ["Mul"]})
    check(["Mul"], "a table", "add it there")

"""Samples of PyTorch's own operator database, compared with PyTorch by the command of the documentation."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")


from docs.site import operator_database, samples_on_ranks
from tests.shares import THOROUGH, is_taken

PAGE = Path(operator_database.__file__).parents[2] / "docs" / "reference" / "pytorch-operators.md"
KINDS = Path(__file__).with_name("database_kinds.txt")
"""Kinds of the samples that are taken under `--update-goldens`, which tests/kind_samples.py need not have."""
TITLES = {"float32": 28, "steps": 40, "int64": 28, "bool": 28, "complex64": 40}
"""One in so many operators is taken of an element type in a normal run; "steps" are of Float32, with gradients."""
UNREAD = {
    "float32": "nn.functional.linear_cross_entropy",
    "steps": """_batch_norm_with_update _segment_reduce linalg.eigh linalg.eigvalsh linalg.solve linalg.solve_ex
        linalg.svd linalg.tensorsolve logdet masked_scatter native_layer_norm nn.functional.ctc_loss
        nn.functional.embedding_bag nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
        nn.functional.layer_norm nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss sgn svd""",
}
"""Operators that are refused, or have kinds that are not known, besides those on the page of the documentation."""
SEVERAL = ("linalg.matrix_rank", "linspace", "logspace", "nanquantile", "quantile")
"""Operators with several kinds each, of which one in `SHARE` samples is taken."""
SHARE = 10
called = dict[str, set[str]]()
"""Kinds of samples that are right."""


def known(title: str) -> set[tuple[str, str]]:
    """Operators with samples that are not right, and their verdict, as the page says."""
    rows = re.findall(r"^\| (\S+) \| ([a-z ]+): (.*?) \|", PAGE.read_text(), re.MULTILINE)
    unread = {(name, verdict) for name in UNREAD.get(title, "").split() for verdict in ("refused", "unknown")}
    return unread | {(name, verdict) for name, verdict, counts in rows if title in counts.replace(",", "").split()}


@pytest.mark.parametrize("title", TITLES)
def test_samples_of_pytorchs_operators(title: str, update_goldens: bool) -> None:
    """The first sample of every operator, and more of some; all of them under `--thorough`."""
    is_step = title == "steps"
    share = 1 if os.environ.get(THOROUGH) and not is_step and not update_goldens else 1 << 20
    parts = operator_database.parts_of("float32" if is_step else title, [], share, 1)
    several = {part.operator for part in operator_database.parts_of("float32", SEVERAL, 1, 1)}
    parts = [part._replace(share=min(part.share, SHARE)) if part.operator in several else part for part in parts]
    taken = [part._replace(is_step=is_step) for place, part in enumerate(parts) if is_taken(place, TITLES[title])]
    outcomes = [each for _, found, _ in operator_database.done_parts(taken, 1) for each in found]
    assert len(outcomes) > 0.8 * len(taken)
    verdicts = [(each, each.values if each.values != "right" else f"{each.gradients} gradients") for each in outcomes]
    wrong = {each: verdict for each, verdict in verdicts if verdict not in (" gradients", "right gradients")}
    called[title] = {kind for each, verdict in verdicts if each not in wrong for kind in each.kinds}
    refused = known(title) | (known("float32") if is_step else set())
    assert [(verdict, *each[:-1]) for each, verdict in wrong.items() if (each.name, verdict) not in refused] == []


@pytest.mark.thorough
def test_the_kinds_of_the_database_are_those_listed(update_goldens: bool) -> None:
    found = set[str]().union(*called.values())
    if update_goldens:
        KINDS.write_text("".join(f"{kind}\n" for kind in sorted(found)))
    assert called.keys() == TITLES.keys()
    assert {*KINDS.read_text().split()} <= found


@pytest.mark.parametrize("ranks", [2, 4])
def test_samples_on_ranks_equal_one_rank(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, slices = samples_on_ranks.random_strategy, set[int]()

    def noted(*given: Any) -> Any:
        found = drawn(*given)
        slices.update(n for operand in found or () for n in operand)
        return found

    monkeypatch.setattr(samples_on_ranks, "random_strategy", noted)
    only = ("index_add", "nn.functional.layer_norm", "nn.functional.conv2d", "matmul", "sort", "cumsum")
    parts = operator_database.parts_of("float32", only, 30, ranks)
    outcomes = [each for _, found, _ in operator_database.done_parts(parts, 1) for each in found]
    assert len(outcomes) > 5
    assert slices == {n for n in range(1, ranks + 1) if ranks % n == 0}
    wrong = [each for each in outcomes if each.values != "right" or each.gradients not in ("", "right")]
    assert [f"{each.name}: {each.values} {each.gradients} {each.reason}" for each in wrong] == []


def test_commands_of_the_page() -> None:
    command = f"python -m {operator_database.__name__} "
    commands = [line.removeprefix(command) for line in PAGE.read_text().splitlines() if line.startswith(command)]
    assert len(commands) == 3
    assert operator_database.TABLE in PAGE.read_text()
    for line in commands:
        options = operator_database.options_of(line.split())
        assert (options.jobs, str(options.results)) == (16, "results")


def test_a_run_continues_its_results(tmp_path: Path) -> None:
    options = {"dtype": "int64", "ranks": 1}
    done, begun, missing = operator_database.parts_of("int64", ["sum", "cumsum", "trace"], 1, 1)[:3]
    outcome = operator_database.SampleOutcome("sum", "int64", "right", "", "")
    file = operator_database.ResultFile(tmp_path / "int64.jsonl", options)
    file.add(done, [outcome], None)
    file.add(begun, [outcome, outcome], 8)
    again = operator_database.ResultFile(tmp_path / "int64.jsonl", options)
    assert again.missing([done, begun, missing]) == [begun._replace(start=8), missing]
    found = operator_database.read_results(tmp_path)
    assert {title: [each.values for each in own] for title, own in found.items()} == {"int64": ["right"] * 3}
    with pytest.raises(operator_database.MspcError, match="not of"):
        operator_database.ResultFile(tmp_path / "int64.jsonl", {"dtype": "int64", "ranks": 2})

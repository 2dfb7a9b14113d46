"""CONTRIBUTING's recipes, followed to the letter in a copy of the checkout: the code as printed passes the linter, lies
where the text says, and the commands give what the text promises.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.serving.client import SERVER

BLOCK = re.compile(r"`([\w./-]+\.(?:py|ir|txt))`[^`]*:\n\n```(?:python|text)\n(.*?)```", re.DOTALL)
"""A file's path in the sentence before its contents."""
GUARD = 1800
"""Seconds after which a command counts as hanging."""


def recipes(root: Path) -> dict[str, str]:
    """The files of CONTRIBUTING.md by their paths."""
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(BLOCK.findall(text))


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the recipes' files in place, and the pass's name in the middle of the pipeline."""
    copy = tmp_path_factory.mktemp("recipes") / "mspc"
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "saved_graph")
    shutil.copytree(root, copy, ignore=left_out)
    for name, contents in recipes(root).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        assert not (copy / name).exists(), f"the recipe's {name} stands in the checkout"
        (copy / name).write_text(contents, encoding="utf-8")
    pipeline = copy / "compiler/pipeline.py"
    text = pipeline.read_text(encoding="utf-8")
    assert text.count('    Step("simplify"),\n') == 1
    longer = text.replace('    Step("simplify"),\n', '    Step("drop_double_neg"),\n    Step("simplify"),\n')
    pipeline.write_text(longer, encoding="utf-8")
    return copy


def run(checkout: Path, *command: str, cwd: Path | None = None, succeeds: bool = True) -> str:
    """The output of a command that must succeed unless told otherwise, with the copy as `mspc`."""
    outside = ("CI", "PYTHONPATH", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", SERVER)  # a server has one mspc
    variables = {key: value for key, value in os.environ.items() if key not in outside}
    variables["PYTHONPATH"] = str(checkout.parent)
    command = (sys.executable, *command)
    done = subprocess.run(
        command, cwd=cwd or checkout, env=variables, capture_output=True, text=True, check=False, timeout=GUARD
    )
    assert not succeeds or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_recipes_have_their_files(root: Path) -> None:
    assert list(recipes(root)) == [
        "ops/math/cube.py", "mindspore_api/index/ops-cube.txt", "mindspore_api/nn/cube.py", "cubes.py",
        "passes/cleanup/drop_double_neg.py",
        "tests/passes/cleanup/drop_double_neg/four.ir",
    ]  # fmt: skip


def test_files_and_folders_that_the_text_names_are_there(root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text[text.index("## Recipe") :], flags=re.DOTALL)
    named = {name for name in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text) if name not in recipes(root)}
    assert [name for name in sorted(named) if not (root / name).exists()] == []
    assert len(named) > 5


def test_the_code_is_linted_and_formatted_as_printed(root: Path, checkout: Path) -> None:
    for name in [name for name in recipes(root) if name.endswith(".py")]:
        run(checkout, "-m", "ruff", "check", "--no-cache", name)
        run(checkout, "-m", "ruff", "format", "--no-cache", "--check", name)


@pytest.fixture(scope="module")
def results(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The failures of the tests that notice the recipes' files, by the file of the test, once the golden is written; ""
    for a test that passed."""
    run(checkout, "-m", "pytest", "-q", "tests/passes/test_golden.py", "-k", "drop_double_neg", "--update-goldens")
    files = ("tests/ops/test_ops.py", "tests/passes/test_golden.py", "tests/commands/test_compile.py")
    # The command's tests are those that look at dumps, for the pass now stands among them.
    named = "Cube or drop_double_neg or (stage and not stages) or pass_before or what_a_run_needs or before_slicing"
    report = tmp_path_factory.mktemp("results") / "report.xml"
    run(checkout, "-m", "pytest", "-q", *files, "-k", named, f"--junitxml={report}", succeeds=False)
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = "\n".join(part.text or part.tag for part in case if part.tag in ("failure", "error", "skipped"))
        found.setdefault(case.get("classname", "").rpartition(".")[2], []).append(wrong)
    return found


def test_the_operator_has_its_tests_function_method_and_cell(
    checkout: Path, results: dict[str, list[str]], tmp_path: Path
) -> None:
    assert set(results["test_ops"]) == {""}
    assert "Cube" in run(checkout, "-m", "mspc", "ops", "Cube", cwd=tmp_path)
    assert run(checkout, str(checkout / "cubes.py"), cwd=tmp_path) == ""


def test_the_golden_is_written_and_holds(checkout: Path, results: dict[str, list[str]]) -> None:
    folder = checkout / "tests/passes/cleanup/drop_double_neg"
    assert sorted(path.name for path in folder.iterdir()) == ["four.ir", "four.out.ir"]
    assert "Return(%para1_x)" in (folder / "four.out.ir").read_text(encoding="utf-8")
    assert results["test_golden"] == ["", ""]


def test_the_pass_runs_in_the_pipeline_and_no_other_test_notices(results: dict[str, list[str]]) -> None:
    assert set(results["test_compile"]) == {""}

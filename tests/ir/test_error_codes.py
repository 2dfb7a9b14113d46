"""The codes of errors: every example of the table gives its code, and its right form works."""

import ast
import linecache
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.engine.ranks.launcher import mpirun_environment
from mspc.ir.diagnostics import ErrorGroup, MspcError
from mspc.ir.error_codes import AREAS, RETIRED, ErrorCode, area_code, mistakes
from mspc.mindspore_api.errors import ApiTypeError
from tests.serving import HANG, invoke
from tests.shares import is_taken
from tests.texts import IMPORTS

MISTAKES = mistakes()
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = IMPORTS + '''

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones([32, 16], np.float32)), "w")
        self.matmul = ops.MatMul()
{init}
{construct}

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
{statements}
Net()(Tensor(np.ones([8, 32], np.float32)))
'''
CONSTRUCT = "def construct(self, x):\n    return ops.relu(self.matmul(x, self.w))"
EXAMPLES = [entry for entry in MISTAKES if entry.example]


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))


def status_and_codes(folder: Path, example: str) -> tuple[int, list[str], str]:
    """Carry out an example in the working folder. Return the last exit status, the codes, and what was printed."""
    init, construct, statements = "", CONSTRUCT, ""
    commands = ["mspc compile net.py --ranks 4"]
    if example.startswith("$"):
        commands = [line.removeprefix("$ ") for line in example.split("\n")]
    elif example.startswith("#IR"):
        (folder / "net.ir").write_text(example + "\n")
        commands = ["mspc opt net.ir"]
    elif "[operator" in example:
        (folder / "plan.toml").write_text(example + "\n")
        commands = ["mspc compile net.py --ranks 4 --strategies plan.toml"]
    elif example.startswith(("self.", "def construct")):
        init, found, rest = example.partition("def construct")
        construct = found + rest if found else CONSTRUCT
    else:
        statements = example
    script = SCRIPT.format(init=indented(init, 8), construct=indented(construct, 4), statements=statements)
    (folder / "net.py").write_text(script)
    for command in commands:
        words = shlex.split(command)
        if words[0] == "echo":
            (folder / words[-1]).write_text(words[1])
            continue
        if words[0] == "mspc":
            linecache.clearcache()  # every example has a file of that name
            done = invoke(*words[1:])
            status, said = done.exit_code, done.output
        else:
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            env = mpirun_environment() | {"PATH": path}
            alone = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, timeout=HANG)
            status, said = alone.returncode, alone.stderr
        if status:
            break
    last = re.search(r"^explain: mspc explain (.*)$", said, re.M)
    return status, last[1].split() if last else [], said


@pytest.mark.parametrize("entry", EXAMPLES, ids=lambda entry: entry.code)
def test_an_example_gives_its_code_and_its_right_form_works(
    entry: ErrorCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entry.wrong != entry.right
    if "import torch" in entry.example:
        pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
    both = (("wrong", entry.wrong), ("right", entry.right))
    for name, example in both[: 1 + is_taken(EXAMPLES.index(entry))]:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        status, codes, err = status_and_codes(tmp_path / name, example)
        assert (status > 0, codes) == ((True, [entry.code]) if name == "wrong" else (False, [])), err


def test_every_mistake_has_an_example_or_says_why_not() -> None:
    without = [entry for entry in MISTAKES if not entry.example and not entry.code.endswith("00")]
    assert [entry.code for entry in without if "There is no example, because " not in entry.text] == []


def test_codes_are_unique_and_in_order() -> None:
    codes = [entry.code for entry in MISTAKES]
    assert codes == sorted(set(codes))
    assert not set(codes) & set(RETIRED)
    assert all(re.fullmatch(r"E\d{4}", code) for code in codes)
    assert len({entry.title for entry in MISTAKES}) == len(MISTAKES)


def test_explanations_have_one_to_five_sentences() -> None:
    for entry in MISTAKES:
        assert 1 <= len(re.findall(r"[.](?= |$)", entry.text)) <= 5, entry.code
        assert len(entry.title) <= 70, entry.code
        assert not entry.title.endswith("."), entry.code


def test_every_code_is_used_and_every_used_code_is_listed() -> None:
    found = {code for _, code in AREAS} | {"E0000"}
    for path in ROOT.rglob("*.py"):
        top = path.relative_to(ROOT).parts[0]
        if top not in ("tests", "docs", "samples", "benchmarks", "build") and not top.startswith("."):
            text = path.read_text()
            if re.search(r'"E\d{4}"', text):
                found |= {
                    node.value
                    for node in ast.walk(ast.parse(text))
                    if path.name != "error_codes.py"
                    and isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"E\d{4}", node.value)
                }
    assert found == {entry.code for entry in MISTAKES}


def test_an_error_without_a_code_has_that_of_its_area() -> None:
    assert area_code("mspc.passes.sharding.decompose") == "E0400"
    assert area_code("mspc.passes.pipelining.cut_stages") == "E0500"
    assert area_code("net") == "E0000"
    namespace = {"MspcError": MspcError, "__name__": "mspc.runtime.executor"}
    exec("def fails():\n    return MspcError('no')", namespace)
    assert namespace["fails"]().code == "E0800"  # type: ignore[operator]
    assert ApiTypeError("no").code == "E1001"


def test_a_group_names_each_code_once() -> None:
    group = ErrorGroup([MspcError("a", code="E0401"), MspcError("b", code="E0402"), MspcError("c", code="E0401")])
    assert group.report().endswith("\n3 errors\nexplain: mspc explain E0401 E0402")

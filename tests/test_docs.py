"""The documentation: examples do what they say, links lead somewhere, the site can be built."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.site import counts, pages
from mspc.passes.base import VERIFY
from tests.conftest import ROOT
from tests.serving import SERVED, run_process, succeed

pytestmark = pytest.mark.usefixtures("brief_searches")

DOCUMENTS = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
WITH_EXAMPLES = [name for name in DOCUMENTS if "\n<!-- run -->\n" in (ROOT / name).read_text(encoding="utf-8")]
LONG = {
    "docs/guides/check-pytorch-step.md": "tests/readers/pytorch/test_captures.py",
    "docs/guides/choose-a-plan.md": "tests/commands/test_search.py",
    "docs/guides/debug-a-hang.md": "tests/runtime/faults/test_hangs.py",
    "docs/guides/fit-memory.md": "tests/search/plans/test_limited_plans.py",
    "docs/guides/from-pytorch.md": "tests/commands/test_compile_pytorch.py",
    "docs/guides/gpus.md": "tests/commands/test_compile.py",
    "docs/guides/offload.md": "tests/offload/test_chosen.py",
    "docs/guides/pytorch-plans.md": "tests/readers/pytorch/test_layer_plans.py",
}
"""Pages with captures, searches and jobs that hang, which only `--thorough` runs, and the tests that run such commands
every day."""
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
RUNS = ("mspc run", "mspc verify")
"""Commands that end with status 1 if a run fails; a mistake in a command or a script has status 2."""
COMMANDS = {"mspc": shlex.join(SERVED), "python": shlex.quote(sys.executable)}
"""Programs that examples call, and the command lines that stand for them."""


def same(wanted: str, printed: str) -> bool:
    """Whether a text is the wanted one, in which `...` stands for anything; how words are spaced does not count."""
    pieces = [re.escape(" ".join(piece.split())) for piece in wanted.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(pieces), " ".join(printed.split())) is not None


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH: `mspc` there is served by a process that has loaded it."""
    folder = tmp_path_factory.mktemp("programs")
    for name, command in COMMANDS.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in LONG)) for name in WITH_EXAMPLES]
)
@pytest.mark.usefixtures("own_folder")
def test_examples_print_what_they_say(name: str, root: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of a page is written and every command run, in one folder, in the order of the page."""
    if "import mspc.capture" in (root / name).read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    monkeypatch.delenv(VERIFY, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]))
    for folder in ("samples", "benchmarks"):
        Path(folder).symlink_to(root / folder)
    for block in counts.blocks((root / name).read_text(encoding="utf-8")):
        if block.kind == "file":
            Path(block.argument).write_text(block.text, encoding="utf-8")
        for command, wanted in counts.steps(block) if block.kind == "run" else ():
            # os.environ, as readline may have set COLUMNS behind Python's back
            done = run_process("bash", "-c", command)
            refused = ": error: " in wanted
            failed = (1, 2) if command.startswith(RUNS) else (2,)
            assert done.returncode in (failed if refused else (0, 1)), f"{command}\n{done.stderr}"
            printed = done.stderr if refused else done.stdout
            assert same(wanted, printed), f"{command}\n{printed}"


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith(counts.RUN_WHOLLY)])
def test_every_code_block_is_run(name: str, root: Path) -> None:
    """Blocks of these pages are files or commands; the few that cannot run here say why."""
    blocks = counts.blocks((root / name).read_text(encoding="utf-8"))
    assert [block.text for block in blocks if not block.kind] == [], "mark it: <!-- file: NAME -->, <!-- run -->"
    assert [block.text for block in blocks if block.kind == "not run" and not block.argument] == [], "say why"


def test_pages_are_short(root: Path) -> None:
    """Paragraphs and pages stay below their limits, and examples are frequent."""
    found = {name: counts.Counts((root / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
    long = {name: page.words for name, page in found.items() if page.words > counts.LONGEST_PAGE}
    assert {name for name in long if name not in counts.GENERATED} == set(), long
    assert found["README.md"].words <= counts.LONGEST_README
    for part, total in counts.parts(found).items():
        assert total.paragraph(0.9) <= counts.LONG_PARAGRAPH, part
        assert part not in counts.DENSE or total.executed_per_1000 >= counts.EXECUTED_PER_1000, part


def test_what_stands_for_anything_and_what_does_not() -> None:
    assert same("a ...\nd  e\n", "a b c\nd e\n")
    assert same("... b\n", "b\n")
    assert not same("a ... c\n", "a b d\n")
    assert not same("a\n", "a b\n")


def anchors(text: str) -> set[str]:
    """The names by which headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(root: Path) -> Iterator[tuple[Path, str]]:
    for folder in ("*.md", "docs/**/*.md", "samples/*/*.md"):
        for path in sorted(root.glob(folder)):
            text = INLINE.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
            yield from ((path, target) for target in LINK.findall(text) if "://" not in target)


def test_links_lead_somewhere(root: Path) -> None:
    broken: list[str] = []
    for path, target in links(root):
        name, _, anchor = target.partition("#")
        other = path.parent / name if name else path
        if not other.exists() or (anchor and anchor not in anchors(other.read_text(encoding="utf-8"))):
            broken.append(f"{path.relative_to(root)}: {target}")
    assert broken == []


def test_links_are_turned_to_pages_of_the_site() -> None:
    text = "[a](docs/guides/b.md#x) [b](samples/quickstart/README.md) [c](LICENSE) [d](https://x.org) [e](no.md)"
    assert pages.linked(text, "README.md", "index.md") == (
        "[a](docs/guides/b.md#x) [b](samples/quickstart.md) c [d](https://x.org) [e](no.md)"
    )
    assert pages.linked("![x](../images/a.png)", "docs/start/a.md", "start/a.md") == "![x](../images/a.png)"
    assert pages.linked("![x](docs/images/a.png)", "README.md", "index.md") == "![x](images/a.png)"
    assert pages.linked("[a](../docs/reference/gpu.md)", "samples/c", "samples/b.md") == "[a](../reference/gpu.md)"


def test_no_page_has_the_place_of_one_that_sphinx_makes() -> None:
    assert not {"search.md", "genindex.md", "py-modindex.md"} & {*pages.sources().values()}
    assert not {*pages.generated()} & {*pages.sources().values()}


def test_docstrings_are_text_and_their_sections_lists() -> None:
    def sample(rows: int, *rest: int) -> None:
        """Rows of <b>, `a<b`, x*y.

        Args:
            rows: how many, and
                of what.
            *rest: others.

        Raises:
            ValueError: never.
        """

    assert pages.described(sample).split("\n") == [
        "Rows of &lt;b>, `a<b`, x\\*y.", "", "", "**Args**", "", "- rows: how many, and", "  of what.",
        "- \\*rest: others.", "", "", "**Raises**", "", "- ValueError: never.",
    ]  # fmt: skip


def test_every_public_class_and_operator_has_its_place() -> None:
    text = pages.reference("train")
    assert "## Model\n" in text
    assert "`train(epoch, train_dataset, callbacks=None" in text
    assert [name for name, _ in pages.members("parallel")] == [
        line.removeprefix("## ") for line in pages.reference("parallel").split("\n") if line.startswith("## ")
    ]
    assert "MatMul" not in {name for name, _ in pages.members("ops")}, "an operator, which has a page"


def test_the_site_is_built_without_a_warning(root: Path, tmp_path: Path) -> None:
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[docs]'")
    succeed(sys.executable, str(root / "docs" / "site" / "build.py"), str(tmp_path))
    assert "Guides" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    operators = (tmp_path / "site" / "reference" / "operators" / "math.html").read_text(encoding="utf-8")
    assert "m k, k n -&gt; m n" in re.sub(r"<[^>]*>", "", operators)

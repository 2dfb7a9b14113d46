"""Benchmarks that run on a CPU start as the README prints them, from an environment that holds next to nothing."""

import argparse
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.records.__main__ as records
from benchmarks import estimates
from mspc.analysis.cost.machine import H200
from mspc.search.calibration.machine_file import write_machine
from tests.serving import run_process
from tests.texts import IMPORTS

NETWORK = IMPORTS + """

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")

class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

Net()(Tensor(np.ones((4, 8)), ms.float32))
"""


def benchmark(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "CI": "true"}
    return run_process(sys.executable, *arguments, cwd=root, env=environment)


def test_start_up(root: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    done = benchmark(root, "benchmarks/start_up.py", "--ranks", "2", "--script", str(tmp_path / "net.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("net.py, 2 ranks, the slowest: first step ")


def test_start_up_hands_on_what_is_wrong(root: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("1 +\n")
    done = benchmark(root, "benchmarks/start_up.py", "--ranks", "2", "--script", str(tmp_path / "net.py"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["benchmarks/compile.py", "--help"],
    ],
)
def test_others_begin(root: Path, arguments: list[str]) -> None:
    done = benchmark(root, *arguments)
    assert done.returncode == 0, done.stderr


def test_the_page_has_the_records(root: Path) -> None:
    assert records.PAGE.read_text(encoding="utf-8") == records.page(), "run `python -m benchmarks.records`"
    assert all(
        set(records.FIELDS) <= record.keys() and {"text", "output"} & record.keys()
        for record in records.records().values()
    )


def test_a_record_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    file = tmp_path / "10-version.toml"
    file.write_text('title = "Version"\ncommand = "python --version"\nmachine = "old"\ndate = "2020-01-01"\n')
    records.renew("version", 'a machine named "new"')
    assert '| [Version](#version) | `python --version` | a machine named "new" |' in records.page()
    assert f"```text\nPython {sys.version.split()[0]}\n```" in records.page()
    file.write_text(file.read_text().replace("--version", "--no-such-option"))
    with pytest.raises(SystemExit, match="ended with status 2; the record is unchanged"):
        records.renew("version", "other")


def test_commands_of_the_page_begin(root: Path) -> None:
    """Every command of docs/reference/benchmarks.md exists and has a help text."""
    page = (root / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    programs = re.findall(r"python\s+(?:(-m)\s+)?((?:benchmarks|tests)[\w./]+)", page)
    verbs = [("-m", "mspc", verb) for verb in re.findall(r"[` ]mspc\s+(\w+) ?(?:-|`|benchmarks|model\.pt2)", page)]
    found = {tuple(filter(None, words)) for words in [*programs, *verbs]}
    assert {("benchmarks/search.py",), ("-m", "benchmarks.proofs"), ("-m", "mspc", "compile")} < found
    done = {words: benchmark(root, *words, "--help") for words in sorted(found)}
    assert {words: each.stderr for words, each in done.items() if each.returncode or "sage:" not in each.stdout} == {}


def test_names_of_saved_plans_have_plain_characters() -> None:
    first = estimates.file_name("transformer 1 4 Megatron-style, 2 x 2", ())
    assert first == "transformer-1-4-Megatron-style-2-x-2.toml"
    second = estimates.file_name("transformer 1 4 Megatron-style, 2 x 2", {first})
    assert second == "transformer-1-4-Megatron-style-2-x-2-2.toml"


def test_a_machine_is_measured_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mspc(*words: str) -> str:
        asked.append(words)
        Path(words[words.index("--out") + 1]).touch()
        return ""

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(estimates, "mspc", mspc)
    options = argparse.Namespace(machine=None, device="gpu", measured=None)
    files = [estimates.machine_file(options, tmp_path, ranks) for ranks in (4, 4, 1)]
    assert files == [(tmp_path / "here.toml").resolve()] * 3
    assert asked == [("calibrate", "--ranks", "4", "--device", "gpu", "--out", str(files[0]))]
    given = argparse.Namespace(machine=tmp_path / "here.toml", device="gpu", measured=None)
    assert estimates.machine_file(given, tmp_path / "other", 1) == files[0]
    kept = argparse.Namespace(machine=None, device="gpu", measured=tmp_path / "other")
    with pytest.raises(SystemExit, match="beside the measured times"):
        estimates.machine_file(kept, tmp_path / "other", 1)


@pytest.mark.thorough
def test_a_network_as_it_stands_is_measured_beside_its_estimate(root: Path, tmp_path: Path) -> None:
    write_machine(tmp_path / "machine.toml", replace(H200, device="CPU"))
    words = ["--networks", "recommender", "--dtype", "f32", "--steps", "3", "--machine", str(tmp_path / "machine.toml")]
    done = benchmark(root, "-m", "benchmarks.estimates", *words)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("recommender"))
    found = re.search(r"estimated +([\d.]+) ms, measured +([\d.]+) ms", line)
    assert found is not None, done.stdout
    assert all(float(time) > 0 for time in found.groups())
    assert "1 plans: mean error" in done.stdout

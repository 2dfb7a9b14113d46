"""Commands run with the lowest versions that setup.cfg declares of the packages that are pure Python."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import HANG, run_process

PURE = ("typer", "lark")
GRAPH = "#IR entry      : @net\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (4)>\n\nsubgraph @net() {\n" \
        "  Return(%para1_x)\n      : (<Tensor[Float32], (4)>)\n}\n"  # fmt: skip


def lowest(root: Path) -> list[str]:
    declared = configparser.ConfigParser()
    declared.read(root / "setup.cfg")
    pins = dict(re.findall(r"^([\w-]+)>=([\d.]+)", declared["options"]["install_requires"], re.MULTILINE))
    return [f"{name}=={pins[name]}" for name in PURE]


@pytest.mark.thorough
def test_commands_run_with_the_lowest_versions(root: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0"]
    pip += ["--timeout", "10", "--only-binary=:all:", "--no-compile", "--target", str(packages), *lowest(root)]
    try:
        installed = subprocess.run(pip, capture_output=True, text=True, timeout=HANG / 5, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("pip takes too long to install the lowest versions")
    if installed.returncode:
        pytest.skip(f"pip cannot install the lowest versions: {installed.stderr[-200:]}")
    (tmp_path / "net.ir").write_text(GRAPH)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])}
    for words, status, text in (
        (["opt", "-p", "simplify", "net.ir"], 0, "%para1_x"), (["check", "missing", "--max-bytes", "1"], 2, "missing"),
        (["check", "--nonsense"], 2, "--nonsense"), (["compile", "-h"], 0, "--ranks"),
    ):  # fmt: skip
        done = run_process(sys.executable, "-m", "mspc", *words, cwd=tmp_path, env=environment)
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        assert text in said
        assert "Traceback" not in said

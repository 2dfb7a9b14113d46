"""The sdist and the wheel that is built from it hold every package and its data, and work outside of a checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from mspc.ops.cpu.loops.library import compiler
from tests.serving import HANG, run_process, succeed

OTHER_PYTHONS = [python for python in os.environ.get("MSPC_PYTHONS", "").split(os.pathsep) if python]
"""Interpreters of other versions, with the dependencies of mspc installed, in which the wheel is tried, too."""


def built(kind: str, source: Path, folder: Path) -> Path:
    """The distribution that setuptools, which is installed, makes from a folder: what pip would call."""
    hook = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    succeed(sys.executable, "-c", hook, cwd=source)
    (found,) = folder.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[kind])
    return found


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from the sdist of a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(".*", "build", "stubs", "__pycache__", "*.egg-info"))
    with tarfile.open(built("sdist", source, folder)) as sdist:
        sdist.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return built("wheel", unpacked, folder)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_every_module(root: Path, wheel_names: set[str]) -> None:
    left_out = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
    modules = {
        f"mspc/{path.relative_to(root)}"
        for path in (*root.glob("*.py"), *root.glob("[a-z]*/**/*.py"))
        if path.relative_to(root).parts[0] not in left_out and path.name != "setup.py"
    }
    assert {name for name in wheel_names if name.endswith(".py")} == modules


def test_wheel_holds_the_data_files_and_no_others(root: Path, wheel_names: set[str]) -> None:
    data = {name for name in wheel_names if name.startswith("mspc/") and not name.endswith(".py")}
    page = {f"mspc/commands/view/page/built/view.{kind}" for kind in ("js", "css")}
    tables = {f"mspc/mindspore_api/index/{path.name}" for path in (root / "mindspore_api/index").glob("*.txt")}
    assert len(tables) > 10
    demo = {"mspc/commands/demo/README.md", "mspc/commands/demo/net.py.txt"}
    kernels = (path for folder in ("ops", "runtime") for path in (root / folder).rglob("*.*"))
    sources = {f"mspc/{p.relative_to(root)}" for p in kernels if p.suffix in (".cu", ".cuh", ".cpp", ".h")}
    assert len(sources) > 90
    others = {"mspc/ir/error_codes.toml", "mspc/ir/text/grammar.lark", "mspc/py.typed"}
    tables_of_settings = ("megatron_arguments", "mistakes", "models", "trainer_settings", "trainers")
    others |= {f"mspc/readers/configurations/{name}.toml" for name in tables_of_settings}
    others |= {"mspc/analysis/cost/machines.toml", "mspc/analysis/cost/training/constants.toml"}
    texts = {f"mspc/{p.relative_to(root)}" for room in ("commands", "readers") for p in (root / room).rglob("*.py.txt")}
    assert len(texts) > 5
    assert data == others | page | tables | demo | sources | texts


def test_wheel_holds_the_licence(wheel_names: set[str]) -> None:
    assert any(name.endswith("LICENSE") for name in wheel_names)


LOOP = """
import mspc
from mspc.ops.cpu.loops.library import compiler, functions_of
print(mspc.__file__)
if compiler():
    functions_of({"f": 'extern "C" void f(void *a, long long b, long long c) {}'}, "")
"""


@pytest.mark.parametrize("python", [sys.executable, *OTHER_PYTHONS])
def test_an_installed_wheel_works_outside_of_a_checkout(wheel: Path, tmp_path: Path, python: str) -> None:
    """Installed without network in a new environment, which sees the dependencies of the interpreter, but no mspc."""
    environment = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True, timeout=HANG)
    installed = environment / "bin/python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    places = [
        subprocess.run([each, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
        for each in (python, installed)
    ]
    (Path(places[1]) / "dependencies.pth").write_text(places[0] + "\n")  # its own .pth files are not read
    pip = [sys.executable, "-m", "pip", "--python", installed, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-compile", wheel], check=True, timeout=HANG)
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MSPC_VERIFY_PASSES")}
    variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    done = run_process(environment / "bin/mspc", "demo", "project", cwd=tmp_path, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "equal: 12 values on 4 ranks" in done.stdout
    assert (tmp_path / "project/net.view.html").stat().st_size > 100_000
    done = succeed(installed, "-c", LOOP, cwd=tmp_path, env=variables)
    assert done.stdout == f"{places[1]}/mspc/__init__.py\n"
    assert any((tmp_path / "cache/mspc/loops").glob("*.so")) == bool(compiler())

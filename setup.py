"""Packages are the folders with an `__init__.py`; everything else stands in setup.cfg. Stubs are made by a build."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
STUBS = ["mspc-stubs", "mindspore-stubs"]


class BuildWithStubs(build_py):
    """Makes the stub packages from the checkout before their files are counted, for wheels and for `-e` alike."""

    def finalize_options(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mspc").symlink_to(ROOT)
            paths = [folder, *filter(None, sys.path)]
            variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            command = [sys.executable, "-P", "-m", "mspc.mindspore_api.index.stubs", str(ROOT / "stubs")]
            subprocess.run(command, check=True, cwd=folder, env=variables)
        super().finalize_options()


setup(
    script_name="setup.py",
    packages=["mspc", *(f"mspc.{folder}" for folder in find_packages()), *STUBS],
    cmdclass={"build_py": BuildWithStubs},
)

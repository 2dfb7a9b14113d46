"""Names of `nn`, `train` and their like are found in the files that define them."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.mindspore_api import index, mint, nn, train
from mspc.mindspore_api.index.module import defined_in, modules_in


def test_names_are_classes_and_functions_or_what_all_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf" / "inner").mkdir(parents=True)
    (tmp_path / "shelf" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "cups.py").write_text(
        "class Cup:\n    pass\n\n\ndef fill(cup):\n    pass\n\n\npour = fill\n_BIG = 3\n\n\ndef _wash(cup):\n    pass\n"
    )
    (tmp_path / "shelf" / "plates.py").write_text(
        '__all__ = ["Plate"]\n\n\nclass Plate:\n    pass\n\n\nclass Saucer:\n    pass\n'
    )
    (tmp_path / "shelf" / "hidden.py").write_text("__all__: tuple[str, ...] = ()\n\n\nclass Mould:\n    pass\n")
    (tmp_path / "shelf" / "inner" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "inner" / "spoons.py").write_text("class Spoon:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("shelf")
    cups = dict.fromkeys(["Cup", "fill", "pour"], "shelf.cups")
    assert defined_in("shelf") == cups | {"Plate": "shelf.plates"}
    assert modules_in("shelf") == ["cups", "hidden", "inner", "plates"]
    assert defined_in("shelf.cups") == cups
    assert defined_in("shelf.inner") == {"Spoon": "shelf.inner.spoons"}
    assert [name for name in sys.modules if name.startswith("shelf.")] == []


def test_a_package_answers_by_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of its files, of other modules, of every name of another, and modules; none that the table hides is shown,
    and no file hides a function."""
    (tmp_path / "drawer").mkdir()
    opening = "from mspc.mindspore_api.index.module import answers\n__getattr__, __dir__ = answers(__name__)\n"
    (tmp_path / "drawer" / "__init__.py").write_text(opening)
    (tmp_path / "drawer" / "knife.py").write_text("def knife(): ...\ndef sharpen(): ...\nclass Fork: ...\n")
    (tmp_path / "tables").mkdir()
    table = "all: drawer\nmodules: knife\nhidden from math: pi _tau=tau\nfrom math: root=sqrt\neach: *_ext = mint.*\n"
    (tmp_path / "tables" / "drawer.txt").write_text(table)
    monkeypatch.setattr(index, "__path__", [*index.__path__, str(tmp_path / "tables")])
    monkeypatch.syspath_prepend(tmp_path)
    drawer = importlib.import_module("drawer")
    importlib.import_module("drawer.knife")
    assert drawer.__all__ == dir(drawer) == ["Fork", "knife", "root", "sharpen"]
    assert drawer.knife is sys.modules["drawer.knife"].knife
    assert drawer.Fork.__module__ == "drawer.knife"
    assert (drawer.pi, drawer._tau, drawer.root) == (math.pi, math.tau, math.sqrt)
    assert drawer.abs_ext is mint.abs
    with pytest.raises(AttributeError, match=r"drawer has no 'Fok'; did you mean Fork\?"):
        drawer.Fok  # noqa: B018  # the access is what is tested


def test_a_module_that_was_imported_hides_no_function() -> None:
    """Both stand in files of their names."""
    code = "from mspc import common, parallel, recompute; import mspc.mindspore_api.parallel.layout as there; "
    code += "print(common.recompute is recompute, parallel.shard.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True shard\n"


@pytest.mark.parametrize("package", [nn, nn.optim, train])
def test_every_public_name_is_there_and_has_a_docstring(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]  # found by the package's __getattr__
    assert set(names) <= set(dir(package))
    assert [name for name in names if not getattr(package, name).__doc__] == []


def test_looking_for_a_name_imports_its_module_only() -> None:
    code = "import sys; from mspc import nn; nn.ReLU; print('mspc.mindspore_api.nn.loss' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"

"""Names of `nn`, `train` and their like are found in the files that define them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.api import nn, train
from mspc.api.members import Members


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
    members = Members("shelf")
    assert members.find("__all__") == ["Cup", "Plate", "fill", "pour"]
    assert members.names() == ["Cup", "Plate", "cups", "fill", "hidden", "inner", "plates", "pour"]
    assert [name for name in sys.modules if name.startswith("shelf.")] == []
    assert members.find("pour") is members.find("cups").fill
    assert Members("shelf", inner="shelf.inner").find("Spoon").__module__ == "shelf.inner.spoons"
    with pytest.raises(AttributeError, match=r"shelf has no 'Plat'; did you mean Plate\?"):
        members.find("Plat")


@pytest.mark.parametrize("package", [nn, nn.optim, train])
def test_every_public_name_is_there_and_has_a_docstring(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]  # found by the package's __getattr__
    assert set(names) <= set(dir(package))
    assert [name for name in names if not getattr(package, name).__doc__] == []


def test_names_that_scripts_use_are_found() -> None:
    assert {"Cell", "Dense", "Adam", "CrossEntropyLoss", "cosine_decay_lr", "get_activation"} <= set(nn.__all__)
    assert {"Model", "LossMonitor", "load_checkpoint", "LossScaler", "build_train_network"} <= set(train.__all__)
    assert not {"positive", "Precision", "VirtualDataset", "no_init_parameters"} & set(nn.__all__)


def test_looking_for_a_name_imports_its_module_only() -> None:
    code = "import sys; from mspc import nn; nn.ReLU; print('mspc.api.nn.loss' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_names_are_known_without_numpy() -> None:
    code = "import sys; from mspc import nn, train; print(len(nn.__all__) > 50, dir(train)[0], 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True Accuracy False\n"

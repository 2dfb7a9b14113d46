"""Networks that PyTorch has exported are proved as programs and as compiled folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.options import ImportOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script
from mspc.commands.verify_folder import of_folder
from tests.exported_programs import two_layers

QUIET = Loudness(quiet=True)
SAMPLE = Path(__file__).resolve().parents[3] / "samples" / "pytorch" / "language_model.pt2"


@pytest.mark.parametrize("sample", [False, True])
def test_an_exported_network_and_its_folder(sample: bool, tmp_path: Path) -> None:
    path = SAMPLE
    if not sample:
        path = tmp_path / "two.pt2"
        two_layers(8).save(path)
    imported = ImportOptions(optimizer="adamw:lr=1e-3", loss="" if sample else "mse")
    options = CompileOptions(ranks=4, imported=imported, loudness=QUIET, out=tmp_path / "out", weights=True)
    found = of_script(str(path), options).proved(0)
    assert found.same
    assert not found.whole
    compile_target(str(path), options)
    of_compiled = of_folder(tmp_path / "out", CompileOptions(loudness=QUIET)).proved(0)
    assert of_compiled.same
    assert not of_compiled.whole

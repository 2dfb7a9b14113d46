"""A share of the networks that `mspc verify --scale` must find equal.

Networks that PyTorch has exported are proved as programs and as compiled folders.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.options import ImportOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script
from mspc.commands.verify_folder import of_folder
from mspc.ops.op import load_operators
from tests.exported_programs import two_layers
from tests.shares import share_of
from tests.verify.scale.networks_that_are_right import EQUAL, drawn, main, outcome_of

load_operators()
SHARE = {
    "stages": (1, 2, 3),
    "halves": (3, 4, 6),
    "rows": (1, 10),
    "public": (0, 8),
    "control": (0, 2),
    "experts": (1, 3, 4, 21),
    "context": (0, 2, 45, 189, 202, 410, 30086),
    "networks": (*range(share_of(12)), 25, 66, 74, 94, 155, 171, 323, 1005),
}
"""Those too that were not: exchanges among several kinds, rows that travel by places, running sums, results of rows,
exchanges of other rounds, constants of ranks, places of keys, a third, indices beyond small tables, other groups."""


@pytest.mark.share(2)
@pytest.mark.parametrize(("source", "seed"), [(source, seed) for source, seeds in SHARE.items() for seed in seeds])
def test_what_is_right_is_equal(source: str, seed: int) -> None:
    found = outcome_of(drawn(source, seed))
    assert (found.kind, found.message) == (EQUAL, "")
    assert found.values > 0


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "1", "--source", "networks"]) == 0
    assert "networks: 1 equal" in capsys.readouterr().out


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

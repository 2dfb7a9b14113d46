"""`mspc passes` prints the pipeline that compiles run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mspc.commands.options import DeviceOption
from mspc.commands.verbs.passes import MODES
from mspc.commands.verbs.passes import passes as list_passes
from mspc.compiler.pipeline import STEPS, idle_passes, numbered, rank_passes, shared_passes
from mspc.ir.diagnostics import MspcError


def listed(tmp_path: Path, mode: str | None = None, device: str | None = None) -> list[str]:
    file = tmp_path / "passes.json"
    list_passes(mode, DeviceOption(device) if device else None, file)
    return [row["name"] for row in json.loads(file.read_text())]


def test_every_pass_is_listed_in_order_with_its_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(tmp_path) == [step.name for step in STEPS]
    out = capsys.readouterr().out
    assert "cut_stages              GPU, stages  " in out
    rows = json.loads((tmp_path / "passes.json").read_text())
    assert all(row["summary"] for row in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_mode_and_a_device_choose_the_passes_of_a_compile(tmp_path: Path, mode: str, device: str) -> None:
    name = device.upper()
    compiled = [*shared_passes(mode, name), *rank_passes(name, stages=2, offloads=True)]
    assert listed(tmp_path, mode, device) == compiled


def test_passes_without_work_are_left_out() -> None:
    idle = idle_passes(regions=False, offloads=False, staged=False, quantizes=False)
    assert idle == {"hoist_invariants", "check_offload", "join_micro_batches", "quantize_products", "assign_stages"}
    assert idle_passes(regions=True, offloads=True, staged=True, quantizes=True) == set()
    assert not {"cut_stages", "offload"} & {*rank_passes()}
    assert rank_passes(stages=2).index("cut_stages") == 1
    gpu = rank_passes("GPU", stages=2)
    assert gpu.index("cut_stages") == gpu.index("pack_attention") + 2  # after matmuls are joined


def test_optional_passes_have_no_number_of_their_own() -> None:
    numbers = dict((name, number) for number, name in numbered(shared_passes("semi_auto_parallel")))
    assert (numbers["decompose"], numbers["grad"], numbers["join_micro_batches"], numbers["simplify"]) == (0, 1, 1, 2)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(MspcError, match="there is no parallel mode 'data_paralel'"):
        list_passes("data_paralel", None, None)

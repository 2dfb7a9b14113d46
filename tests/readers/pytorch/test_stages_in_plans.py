"""Stages of a pipeline in plans of layers: which modules are on which, and the numbers of one device."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.plans.strategies import planned
from mspc.readers.pytorch.plans.written_plan import plan_of
from tests.readers.pytorch.test_layer_plans import MEGATRON, SAMPLE, program
from tests.serving import serve

IN_ORDER = {"words": [["words"], ["x"]], "layers": [["x"], ["x"]], "norm": [["x"], ["x"]]}
TRAINED = ("--ranks", "4", "--optimizer", "sgd:lr=0.1")


def stages(count: int, **found: Any) -> Mapping[str, int]:
    return planned(program(), plan_of("plan", {"mesh": {"pp": count, "tp": 2}, **found}, 2 * count)).stages


def test_blocks_are_divided_and_what_is_named_is_at_the_ends() -> None:
    found = stages(2, base_model_pp_plan=IN_ORDER)
    assert found["words-Embedding"] == 0
    assert found["layers.0-Layer/attention-Attention/query-Linear"] == 0
    assert found["layers.1-Layer"] == found["layers.1-Layer/up-Linear"] == found["norm-LayerNorm"] == 1
    assert "head-Linear" not in found
    alone = stages(2)
    assert {*found} - {*alone} == {"words-Embedding", "norm-LayerNorm"}


@pytest.mark.parametrize(
    ("count", "said", "told"),
    [(4, {}, "there are 4 stages, and the longest list of modules that are alike has 2"),
     (2, {"base_model_pp_plan": {"layer": []}}, "'layer' names no module"),
     (2, {"base_model_pp_plan": {"words": []}}, "the longest list of modules that are alike has 0")],
)  # fmt: skip
def test_what_cannot_be_divided_is_told(count: int, said: Mapping[str, Any], told: str) -> None:
    with pytest.raises(MspcError, match=told):
        stages(count, **said)


def test_stages_are_ranks_in_a_row() -> None:
    with pytest.raises(MspcError, match="has the axis 'pp' after others"):
        plan_of("plan", {"mesh": {"tp": 2, "pp": 2}}, 4)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "said",
    [{"layers": MEGATRON, "mesh": {"pp": 2, "tp": 2}}, {"mesh": {"pp": 2, "dp": 2}, "base_model_pp_plan": IN_ORDER}],
    ids=["layers", "rows"],
)
def test_stages_have_the_numbers_of_one_device(tmp_path: Path, said: Mapping[str, Any]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(said))
    done = serve("verify", str(SAMPLE), *TRAINED, "--plan", "plan.json", "--accumulate", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 4 ranks in 2 stages within 1e-05 of one device" in done.stdout


def test_training_in_stages_needs_micro_batches(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"mesh": {"pp": 2, "tp": 2}}))
    done = serve("compile", str(SAMPLE), *TRAINED, "--plan", "plan.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "plan.json has 2 stages, and --accumulate 1 gives a batch fewer parts" in done.stderr
    assert "give --accumulate 2 or more" in done.stderr

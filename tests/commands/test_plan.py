"""`mspc plan`: one screen, JSON, and faster settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mspc.commands.plan import ConfigurationRequest, plan
from mspc.ir.diagnostics import MspcError


def test_a_preset_fits_one_screen_and_json_has_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert plan(ConfigurationRequest(preset="llama3-8b", ranks=8, machine="h100", sequence=8192, json=out)) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 50
    assert "tokens/s a rank" in shown
    content = json.loads(out.read_text())
    stages = content["memory"]["stages"]
    assert content["memory"]["worst_rank_bytes"] == max(stage["peak_bytes"] for stage in stages)
    assert content["memory"]["last_stage_bytes"] == stages[-1]["peak_bytes"] == sum(stages[-1]["parts"].values())
    assert content["memory"]["worst_rank_bytes"] <= content["memory"]["capacity_bytes"]
    assert sum(content["parts_seconds"].values()) == pytest.approx(content["step_seconds"])
    assert 0.2 < content["model_flops_utilisation"] < 1


def test_faster_settings_have_the_names_of_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "train.toml"
    config.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 64\n'
        '[parallelism]\ntensor_parallel_degree = 8\n[activation_checkpoint]\nmode = "full"\n'
    )
    out = tmp_path / "plan.json"
    plan(ConfigurationRequest(config, ranks=16, machine="h100", json=out, better=True))
    assert "faster settings that fit" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["better"]
    first = content["better"][0]
    assert first["step_seconds"] < content["step_seconds"]
    assert "parallelism.tensor_parallel_degree" in first["settings"]


def test_one_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="name one configuration"):
        plan(ConfigurationRequest())
    with pytest.raises(MspcError, match="no degrees fit"):
        plan(ConfigurationRequest(preset="llama3.1-405b", ranks=8, machine="h100"))


def test_a_plan_is_proved_at_small_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gpt.args"
    config.write_text(
        "--num-layers 8\n--hidden-size 512\n--num-attention-heads 8\n--group-query-attention\n--num-query-groups 4\n"
        "--seq-length 1024\n--max-position-embeddings 1024\n--micro-batch-size 1\n--global-batch-size 32\n--bf16\n"
        "--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 2\n--use-distributed-optimizer\n"
    )
    assert plan(ConfigurationRequest(arguments=config, ranks=16, machine="h100", verify=True)) == 0
    shown = capsys.readouterr().out
    assert "a step with tensor 2, pipeline 2, data 4 beside one of one device:\nequal: " in shown
    assert "values of 8 ranks of 2 kinds" in shown
    dense = config.read_text()
    for expert, found in ((1, "data 2"), (2, "data 2, expert 2")):
        more = f"--num-experts 4\n--moe-router-topk 2\n--expert-model-parallel-size {expert}\n--moe-grouped-gemm\n"
        config.write_text(f"{dense}{more}--expert-tensor-parallel-size {expert}\n--sequence-parallel\n")
        plan(ConfigurationRequest(arguments=config, ranks=8, machine="h100", verify=True))
        assert f"{found} beside one of one device:\nequal: " in capsys.readouterr().out
    plan(ConfigurationRequest(preset="deepseek-v2-lite", ranks=16, machine="h100", verify=True))
    assert "not proved: " in capsys.readouterr().out
    with pytest.raises(MspcError, match="--json needs a file"):
        plan(ConfigurationRequest(preset="llama3-8b", ranks=8, verify=True, json=Path("-")))


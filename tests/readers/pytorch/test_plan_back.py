"""Plans written back as code for DTensor: they run under PyTorch with mspc's losses, or are refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import HANG
from tests.readers.pytorch.test_layer_plans import MEGATRON, PLACES, SAMPLE, SEQUENCE, mspc

torch = pytest.importorskip("torch")
PROCESSES = Path(__file__).with_name("torch_processes.py")
TRAINED = ("--ranks", "4", "--optimizer", "sgd:lr=1e-1")
LLAMA = {
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    **{f"model.layers.*.mlp.{name}_proj": "colwise" for name in ("gate", "up")},
    "model.layers.*.self_attn.o_proj": "rowwise", "model.layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output",
}  # fmt: skip


def written(folder: Path, layers: dict[str, str], mesh: dict[str, int], target: Path, *more: str) -> str:
    """The file that a compile with these styles writes."""
    (folder / "plan.json").write_text(json.dumps({"layers": layers, "mesh": mesh}))
    found = mspc(
        "compile", str(target), *TRAINED, "--plan", "plan.json", "--out-torch", "plan.py", "--out", "graph", *more,
        cwd=folder,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return (folder / "plan.py").read_text()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small LLaMA: llama.pt2, module.pt and inputs.npz."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=32, use_cache=False,
    )).train()  # fmt: skip
    words = torch.randint(0, 64, (8, 16))
    exported = torch.export.export(module, (), {"input_ids": words, "labels": words}, strict=False)
    torch.export.save(exported, folder / "llama.pt2")
    torch.save(module, folder / "module.pt")
    np.savez(folder / "inputs.npz", input_ids=words.numpy(), labels=words.numpy())
    return folder


@pytest.mark.parametrize("mesh", [{"tp": 4}, {"dp": 2, "tp": 2}], ids=["layers", "layers and rows"])
def test_llama_has_the_losses_of_mspc(llama: Path, tmp_path: Path, mesh: dict[str, int]) -> None:
    written(tmp_path, LLAMA, mesh, llama / "llama.pt2", "-q")
    run = mspc(
        "run", "graph", "--simulate", "--data", str(llama / "inputs.npz"), "--steps", "3", cwd=tmp_path
    )
    losses = [float(loss) for loss in re.findall(r"loss is (\S+)", run.stdout)]
    for name in ("module.pt", "inputs.npz"):
        (tmp_path / name).symlink_to(llama / name)
    other = subprocess.run(
        [sys.executable, str(PROCESSES), str(tmp_path), "4"], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert other.returncode == 0, other.stderr[-2000:]
    found = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses) == 3
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    if "dp" not in mesh:  # fully_shard gathers parameters, too
        forward = {"all_reduce": 4, "all_gather_into_tensor": 1}
        assert found["sent"] == forward


def test_a_file_says_layers_by_patterns(tmp_path: Path) -> None:
    code = written(tmp_path, MEGATRON, {"tp": 4}, SAMPLE)
    compile(code, "plan.py", "exec")
    assert '"layers.*.attention.query": ColwiseParallel(),' in code
    assert '"layers.*.down": RowwiseParallel(),' in code
    assert '(4,), mesh_dim_names=("tp",)' in code
    assert code == written(tmp_path, MEGATRON, {"tp": 4}, SAMPLE)


def test_one_layer_alone_has_its_own_name(tmp_path: Path) -> None:
    layers = {"layers.1.up": "colwise", "layers.1.down": "rowwise"}
    code = written(tmp_path, layers, {"tp": 4}, SAMPLE)
    assert '"layers.1.up": ColwiseParallel(),' in code
    assert "layers.0" not in code
    assert "*" not in code


@pytest.mark.parametrize(
    ("layers", "more", "told"),
    [(SEQUENCE, (), "of the sequence"), ({}, ("--out-torch", "plan.txt"), "writes Python")],
    ids=["sequence", "no Python"],
)
def test_what_is_not_written_is_refused(
    tmp_path: Path, layers: dict[str, str], more: Sequence[str], told: str
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"layers": layers or MEGATRON, **(PLACES if layers else {})}))
    found = mspc(
        "compile", str(SAMPLE), *TRAINED, "--plan", "plan.json", "--out-torch", "plan.py", *more, cwd=tmp_path
    )
    assert found.returncode == 2
    assert told in found.stderr
    assert not (tmp_path / "plan.py").exists()

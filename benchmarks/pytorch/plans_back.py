"""Collectives of plans that are written back: those that mspc says, and those that PyTorch sends for the same plan.

    python -m benchmarks.pytorch.plans_back [--only NAME]...

Small models of transformers are compiled for four ranks with `--out-torch`, and run as that file says on four CPU
processes of PyTorch (gloo). Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pytorch.small_models import export

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = Path(__file__).with_name("torch_processes.py")
RANKS, STEPS = 4, 3
ATTENTION = {
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    "model.layers.*.self_attn.o_proj": "rowwise", "lm_head": "colwise_gather_output",
}  # fmt: skip
LLAMA = {
    **ATTENTION, **{f"model.layers.*.mlp.{name}_proj": "colwise" for name in ("gate", "up")},
    "model.layers.*.mlp.down_proj": "rowwise",
}  # fmt: skip
GPT2 = {
    "transformer.wte": "embedding_rowwise", "transformer.h.*.attn.c_attn": "colwise_gather_output",
    "transformer.h.*.attn.c_proj": "rowwise_split_input", "transformer.h.*.mlp.c_fc": "colwise",
    "transformer.h.*.mlp.c_proj": "rowwise", "lm_head": "colwise_gather_output",
}  # fmt: skip
EXPERTS = {
    **ATTENTION, "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "model.layers.*.mlp.experts.down_proj": "rowwise", "model.layers.*.mlp.experts": "moe_tp_experts",
}
PLANS: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, int]]] = {
    "LLaMA": ("llama", LLAMA, {"tp": 4}),
    "LLaMA, 2 x 2": ("llama", LLAMA, {"dp": 2, "tp": 2}),
    "GPT-2": ("gpt2", GPT2, {"tp": 4}),
    "GPT-2, 2 x 2": ("gpt2", GPT2, {"dp": 2, "tp": 2}),
    "Mixtral": ("mixtral", EXPERTS, {"tp": 4}),
}
"""Models, the styles of their layers, and meshes."""
Sent = dict[str, dict[str, list[int]]]
"""By `forward` and `backward` and the kind of a collective: how many, and the bytes that one rank sends."""


class Compared(NamedTuple):
    """Losses of three steps, and what is sent in one."""

    said_losses: list[float]
    losses: list[float]
    said: Sent
    sent: Sent


def compared(name: str, folder: Path) -> Compared:
    """Both for a plan, in an empty folder. Raises RuntimeError where a command fails."""
    model, layers, mesh = PLANS[name]
    export(model, folder)
    (folder / "layers.json").write_text(json.dumps({"layers": dict(layers), "mesh": dict(mesh)}))
    printed = _run(
        folder, "-m", "mspc", "compile", "model.pt2", "--ranks", str(RANKS), "--optimizer", "sgd:lr=1e-1", "--plan",
        "layers.json", "--out-torch", "plan.py", "--out", "graph", "--json", "-", "-q",
    )  # fmt: skip
    run = _run(folder, "-m", "mspc", "run", "graph", "--simulate", "--data", "inputs.npz", "--steps", str(STEPS))
    _run(folder, str(PROCESSES), str(folder), str(RANKS))
    found = json.loads((folder / "torch.json").read_text())
    said = [float(loss) for loss in re.findall(r"loss is (\S+)", run)]
    return Compared(said, found["losses"], _said(json.loads(printed)), found["sent"])


def _run(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return done.stdout


def _said(report: Any) -> Sent:
    found: Sent = {"forward": {}, "backward": {}}
    for each in report["collectives"]:
        phase = "forward" if each["phase"] == "forward" else "backward"
        kind = found[phase].setdefault(each["operator"], [0, 0])
        kind[0] += each["runs"]
        kind[1] += each["bytes"]
    return found


def rows(name: str, found: Compared) -> list[str]:
    """Two lines of the table."""
    return [
        f"| {name} | {phase} | {_cells(found.said[phase])} | {_cells(found.sent[phase])} |"
        for phase in ("forward", "backward")
    ]


def _cells(sent: Mapping[str, list[int]]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, (count, _) in sorted(sent.items()))
    return f"{kinds or 'none'} | {sum(nbytes for _, nbytes in sent.values()):,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PLANS))
    asked = parser.parse_args()
    print("| plan | | mspc | bytes | PyTorch | bytes |\n|---|---|---|--:|---|--:|")
    for name in asked.only or PLANS:
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(rows(name, compared(name, Path(folder)))), flush=True)


if __name__ == "__main__":
    main()

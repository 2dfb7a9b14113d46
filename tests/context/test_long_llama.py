"""The network that benchmarks compile at full size trains as on one device, as one graph of its layers too."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "networks" / "long_llama.py"
SIZES = "2 16 4 2 24 32"
"""Layers, width, heads, heads of keys, hidden width, vocabulary."""


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "arguments",
    [f"{SIZES} 1 4 1 16 1", f"{SIZES} 2 2 1 16 0", f"lazy {SIZES} 1 2 2 16 1", f"lazy {SIZES} 1 4 1 16 2"],
)
def test_long_texts_train_as_on_one_device(arguments: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text = SCRIPT.read_text(encoding="utf-8")
    script.write_text(text.replace("HALF = ms.bfloat16", "HALF = ms.float32"), encoding="utf-8")
    verify_target(str(script), CompileOptions(script_arguments=tuple(arguments.split())), seed=1)

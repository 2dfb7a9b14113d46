"""Programs of hand-written texts with graphs that nodes run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.texts import text_of

TEXTS = Path(__file__).with_name("region_programs.ir")

WHILE = text_of(TEXTS, "while")
"""x of shape () is changed by a body while it is below a limit."""

GROWS = text_of(TEXTS, "grows").rstrip()

STAYS = """  Return(%para5_x)
      : (<Tensor[Float32], ()>)"""


def write_program(
    folder: Path, texts: Sequence[str], inputs: Sequence[str], outputs: int = 1, mode: str = "stand_alone",
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:  # fmt: skip
    """A folder as a compile leaves it, of the text of every rank's graph."""
    folder.mkdir(parents=True, exist_ok=True)
    execute: dict[str, str] = {}
    for rank, text in enumerate(texts):
        execute[str(rank)] = f"rank_{rank}.ir"
        (folder / execute[str(rank)]).write_text(text)
    content = {
        "format": 1, "compile_id": "by hand", "ranks": len(texts), "mode": mode, "training": bool(weights),
        "execute": execute, "digests": {}, "inputs": [{"name": name} for name in inputs],
        "outputs": [{} for _ in range(outputs)],
        "parameters": [{"name": name} for name in weights or ()],
    }  # fmt: skip
    (folder / "program.json").write_text(json.dumps(content))
    if weights:
        save_file(dict(weights), folder / "weights.safetensors")
    return folder


def counting_up(rank: int = 0, ranks: int = 1, body: str = GROWS, more: str = "", mode: str = "stand_alone") -> str:
    """A rank's text of the loop."""
    return WHILE.format(mode=mode, rank=rank, ranks=ranks, body=body, more=more)


def growing_together(by: int) -> str:
    """A body in which x becomes what ranks 0 and 1 sum up, and a number more."""
    return text_of(TEXTS, "growing_together", by=by)

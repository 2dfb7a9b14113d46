"""Programs of hand-written texts with graphs that nodes run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WHILE = """#IR entry      : @main
#Total subgraph: 3

#attrs         :
compile_id : "by hand"
mode : "{mode}"
ranks : {ranks}
rank : {rank}
#Total params  : 2

%para1_x: <Tensor[Float32], ()>
%para2_limit: <Tensor[Float32], ()>

subgraph @main() {{
  %0 = While(%para1_x, %para2_limit) {{regions: @condition, @body}} primitive_attrs: {{carried: 1{more}}}
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tuple[Tensor[Float32]], TupleShape(())>)
      # scope: (Default)
      # In file net.py(7)/        while x < limit:/ 9~24
  %1 = TupleGetItem(%0) primitive_attrs: {{index: 0}}
      : (<Tuple[Tensor[Float32]], TupleShape(())>) -> (<Tensor[Float32], ()>)
      # scope: (Default)
  Return(%1)
      : (<Tensor[Float32], ()>)
}}

%para3_x: <Tensor[Float32], ()>
%para4_limit: <Tensor[Float32], ()>
subgraph @condition(%para3_x, %para4_limit) {{
  %0 = Less(%para3_x, %para4_limit)
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tensor[Bool], ()>)
      # scope: (Default)
  Return(%0)
      : (<Tensor[Bool], ()>)
}}

%para5_x: <Tensor[Float32], ()>
%para6_limit: <Tensor[Float32], ()>
subgraph @body(%para5_x, %para6_limit) {{
{body}
}}
"""
"""x of shape () is changed by a body while it is below a limit."""

GROWS = """  %0 = Add(%para5_x, Tensor(shape=[], dtype=Float32, value=1))
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tensor[Float32], ()>)
      # scope: (Default)
      # In file net.py(8)/            x = x + 1/ 13~22
  Return(%0)
      : (<Tensor[Float32], ()>)"""

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
    return f"""\
  %0 = AllReduce(%para5_x) primitive_attrs: {{op: "sum", rank_list: (0, 1)}}
      : (<Tensor[Float32], ()>) -> (<Tensor[Float32], ()>)
      # scope: (Default)
      # In file net.py(8)/            x = self.sum(x) + 1/ 17~28
  %1 = Add(%0, Tensor(shape=[], dtype=Float32, value={by}))
      : (<Tensor[Float32], ()>, <Tensor[Float32], ()>) -> (<Tensor[Float32], ()>)
      # scope: (Default)
  Return(%1)
      : (<Tensor[Float32], ()>)"""

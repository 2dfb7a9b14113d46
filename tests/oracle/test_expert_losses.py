"""Networks like Mixtral and DeepSeek-V3, small, on 8 ranks: the losses of 6 steps are PyTorch's."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.run import run_script
from tests.oracle.experts_in_torch import Network

STEPS = 6
SAVED = 'np.savez("begin.npz", text=text, **{p.name: p.asnumpy() for p in network.get_parameters()})\n'


def sizes_of(text: str, name: str) -> dict[str, Any]:
    """A row of the script's table of sizes, without element types."""
    table = re.search(r"^SIZES = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    return ast.literal_eval(re.sub(r"ms\.\w+", "None", table[1]))[name]


@pytest.mark.share(2)
@pytest.mark.parametrize("form", ["sorted"])
@pytest.mark.parametrize("name", ["small-mixtral", "small-deepseek"])
def test_losses_are_those_of_pytorch(name: str, form: str, root: Path, own_folder: Path) -> None:
    text = (root / "benchmarks/networks/experts.py").read_text()
    (own_folder / "net.py").write_text(text.replace("for _ in range(STEPS):\n", f"{SAVED}for _ in range(STEPS):\n"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        run_script(own_folder / "net.py", 8, simulate=True, script_arguments=[name, form, "4", str(STEPS)])
    found = [float(loss) for loss in re.findall(r"loss ([0-9.e+-]+)", printed.getvalue())][::8]
    begin = dict(np.load(own_folder / "begin.npz"))
    words = begin.pop("text")
    assert found == pytest.approx(Network(sizes_of(text, name), begin).train(words, STEPS), rel=2e-6)

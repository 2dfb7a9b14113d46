"""Scripts shard the operators of an Embedding, which MindSpore gives flat indices."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.run import run_script

SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Tensor, nn
from mspc.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
net = nn.Embedding(16, 8, embedding_table=Tensor(np.arange(128).reshape(16, 8), ms.float32))
{shard}
print(net(Tensor(np.arange(12).reshape(4, 3), ms.int32)).asnumpy().tolist())
"""


@pytest.mark.parametrize("strategy", ["((1, 1), (2,))", "((1, 2), (1,))", "((1, 1), (2, 1))", "((2, 1), (1,))"])
def test_a_table_is_looked_up_where_its_gather_is_sharded(
    tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "embedding.py"
    path.write_text(SCRIPT.format(shard=""))
    run_script(path, 1, simulate=True)
    (expected,) = capsys.readouterr().out.splitlines()
    more = "\nnet.expand.shard(((2, 1),))" if strategy.endswith("(2,))") else ""
    path.write_text(SCRIPT.format(shard=f"net.gather.shard({strategy}){more}"))
    run_script(path, 2, simulate=True)
    assert capsys.readouterr().out.splitlines() == [expected, expected]

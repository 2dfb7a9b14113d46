"""Networks that are not trained run in stages as well, with or without micro-batches of their own; all ranks have the
results."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from tests.pipelining.staged_script import printed, same_as_one_stage

TIED = """
class Embedding(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(drawn.randn(16, 8)), name="table")

    def construct(self, x):
        return ops.gather(self.table, x, 0), self.table.value()


class Head(nn.Cell):
    def construct(self, x, table):
        return ops.matmul(x, table.T)


class Tied(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.embedding, self.first, self.last, self.head = Embedding(), Layer(), Layer(), Head()

    def construct(self, x):
        x, table = self.embedding(x)
        return self.head(self.last(self.first(x)), table)


class Parts(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        rows = x.shape[0] // 4
        return ops.concat([self.network(x[i * rows : (i + 1) * rows]) for i in range(4)])


net = Tied()
if STAGES > 1:
    net.embedding.pipeline_stage, net.first.pipeline_stage = 0, {stages}[0]
    net.last.pipeline_stage, net.head.pipeline_stage = {stages}[1], 1
x = Tensor(np.arange(8) * 3 % 16, ms.int32)
"""


@pytest.mark.parametrize("broadcast", [False, True])
def test_parts_of_a_batch_and_a_table_that_two_stages_read(tmp_path: Path, broadcast: bool) -> None:
    same_as_one_stage(tmp_path, TIED.format(stages=(0, 1)) + f"""
network = AutoParallel(Parts(net).set_train(False), "semi_auto")
network.dataset_strategy("full_batch")
network.pipeline(STAGES, output_broadcast={broadcast})
network.compile(x)
ms.sync_pipeline_shared_parameters(network)
print("%.10e" % np.abs(network(x).asnumpy()).sum())
""")  # fmt: skip


@pytest.mark.parametrize("more", ["pipeline_segments=2", "pipeline_config={'pipeline_interleave': True}"])
def test_values_come_back_where_stages_have_several_parts(tmp_path: Path, more: str) -> None:
    same_as_one_stage(tmp_path, TIED.format(stages=(1, 0)) + f"""
settings(**(dict({more}) if STAGES > 1 else {{}}))
print("%.10e" % np.abs(ms.train.Model(net).predict(x).asnumpy()).sum())
""")  # fmt: skip


def test_values_do_not_come_back_otherwise(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="values flow forward"):
        printed(tmp_path, TIED.format(stages=(1, 0)) + "settings()\nms.train.Model(net).predict(x)\n")


def test_several_results_of_micro_batches_are_sums_too(tmp_path: Path) -> None:
    found = printed(tmp_path, """
settings()
class Two(Net):
    def construct(self, x, y):
        found = self.second(self.first(x))
        return self.last(found), (found * y).sum()

Net = Two
net, (x, y) = staged(), batch()
print(["%.10e" % np.abs(each.asnumpy()).sum() for each in nn.PipelineCell(net, 2)(x, y)])
first, second, last = (each.w.asnumpy() for each in (net.first, net.second, net.last))
found = np.tanh(np.tanh(x.asnumpy() @ first) @ second)
sums = np.tanh(found @ last).reshape(2, 4, 8).sum(0), (found * y.asnumpy()).sum()
print(["%.10e" % np.abs(each).sum() for each in sums])
""")  # fmt: skip
    assert len(found) == 4
    assert len(set(found)) == 1

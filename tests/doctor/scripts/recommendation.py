"""Wide and deep: sparse updates and a parameter server."""

from mindspore import ParameterTuple, context, nn
from mindspore import ops
from mindspore.nn import Cell as Base
from mindspore.nn.probability.distribution import Normal as Gauss  # lacks mindspore.nn.probability.distribution
from mindspore.ops import FusedSparseLazyAdamV7, FusedSparseFtrlV7, Gather  # lacks mindspore.ops.FusedSparseLazyAdamV7, mindspore.ops.FusedSparseFtrlV7

context.set_ps_context_of_servers(enable_ps=True)  # lacks mindspore.context.set_ps_context_of_servers


class WideDeep(Base):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.EmbeddingLookup(config.vocab_size, config.emb_dim, target="CPU", slice_mode="batch_slice")
        self.table = ops.EmbeddingTableOfServers()  # lacks mindspore.ops.EmbeddingTableOfServers
        self.gather = Gather()
        self.squeeze = ops.Squeeze(axis=1, keep=True)  # lacks mindspore.ops.Squeeze(keep)
        self.adam = FusedSparseLazyAdamV7()
        self.weights = ParameterTuple(self.trainable_params())
        self.distribution = Gauss(0, 1)

    def construct(self, ids):
        self.adam(ids)
        self.distribution.prob(ids)
        return self.squeeze(self.embedding(ids))

    def more(self):
        return super().insert_child_to_shelf("a", None)


wide = nn.FTRL(WideDeep(None).trainable_params(), learning_rate=5e-2, l1=1e-8, l2=1e-8, initial_accum=1.0)
wide.target = "CPU"

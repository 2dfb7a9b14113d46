"""The LSTM language model in MindSpore's style."""

import mspc as ms
from mspc import Parameter, nn, ops


class Network(nn.Cell):
    """The mean cross entropy of the next words."""

    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.drop = nn.Dropout(p=s.dropout)
        self.rnn = nn.LSTM(s.width, s.width, s.layers, dropout=s.dropout)
        self.bias = Parameter(ops.zeros((s.vocabulary,), ms.float32))
        self.start = ops.zeros((s.layers, s.batch, s.width), ms.float32)

    def construct(self, words, following):
        x = self.drop(self.embedding(words))
        x, _ = self.rnn(x, (self.start, self.start))
        x = self.drop(x).reshape(-1, x.shape[-1])
        logits = ops.matmul(x, self.embedding.embedding_table.T) + self.bias
        return ops.cross_entropy(logits, following.reshape(-1))

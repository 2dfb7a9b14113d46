"""BERT in MindSpore's style."""

import mspc as ms
from mspc import Parameter, nn, ops


class Embeddings(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.word_embedding = nn.Embedding(s.vocabulary, s.width)
        self.position_embedding = nn.Embedding(s.length, s.width)
        self.segment_embedding = nn.Embedding(2, s.width)
        self.norm = nn.LayerNorm((s.width,), epsilon=1e-12)
        self.dropout = nn.Dropout(p=s.dropout)

    def construct(self, words, segments):
        places = ops.arange(words.shape[1])
        x = self.word_embedding(words) + self.position_embedding(places) + self.segment_embedding(segments)
        return self.dropout(self.norm(x))


class SelfAttention(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.query, self.key, self.value = (nn.Dense(s.width, s.width) for _ in range(3))
        self.dropout = nn.Dropout(p=s.dropout)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def construct(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / ops.sqrt(ms.Tensor(self.size, ms.float32))
        shares = self.dropout(ops.softmax(scores + mask, axis=-1))
        return ops.matmul(shares, v).permute(0, 2, 1, 3).reshape(x.shape)


class Layer(nn.Cell):
    def __init__(self, s):
        super().__init__()
        self.attention = SelfAttention(s)
        self.attention_output = nn.Dense(s.width, s.width)
        self.attention_norm = nn.LayerNorm((s.width,), epsilon=1e-12)
        self.intermediate = nn.Dense(s.width, 4 * s.width, activation="gelu")
        self.output = nn.Dense(4 * s.width, s.width)
        self.output_norm = nn.LayerNorm((s.width,), epsilon=1e-12)
        self.dropout = nn.Dropout(p=s.dropout)

    def construct(self, x, mask):
        x = self.attention_norm(x + self.dropout(self.attention_output(self.attention(x, mask))))
        return self.output_norm(x + self.dropout(self.output(self.intermediate(x))))


class Network(nn.Cell):
    """The losses of hidden words and of whether the second text follows the first."""

    def __init__(self, s):
        super().__init__()
        self.embeddings = Embeddings(s)
        self.encoder = nn.CellList([Layer(s) for _ in range(s.layers)])
        self.pooler = nn.Dense(s.width, s.width, activation="tanh")
        self.transform = nn.Dense(s.width, s.width, activation="gelu")
        self.transform_norm = nn.LayerNorm((s.width,), epsilon=1e-12)
        self.decoder_bias = Parameter(ops.zeros((s.vocabulary,), ms.float32))
        self.next = nn.Dense(s.width, 2)
        self.width = s.width

    def construct(self, words, segments, present, places, wanted, follows):
        b, t = words.shape
        mask = (1.0 - present.astype(ms.float32)).view(b, 1, 1, t) * -10000.0
        x = self.embeddings(words, segments)
        for layer in self.encoder:
            x = layer(x, mask)
        rows = (places + ops.arange(b).expand_dims(-1) * t).reshape(-1)
        hidden = ops.gather(x.reshape(-1, self.width), rows, 0)
        hidden = self.transform_norm(self.transform(hidden))
        logits = ops.matmul(hidden, self.embeddings.word_embedding.embedding_table.T) + self.decoder_bias
        loss = ops.cross_entropy(logits, wanted.reshape(-1))
        return loss + ops.cross_entropy(self.next(self.pooler(x[:, 0])), follows)

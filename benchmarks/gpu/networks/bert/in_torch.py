"""BERT in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F


class Embeddings(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.word_embedding = nn.Embedding(s.vocabulary, s.width)
        self.position_embedding = nn.Embedding(s.length, s.width)
        self.segment_embedding = nn.Embedding(2, s.width)
        self.norm, self.dropout = nn.LayerNorm(s.width, eps=1e-12), nn.Dropout(s.dropout)

    def forward(self, words, segments):
        places = torch.arange(words.shape[1], device=words.device)
        x = self.word_embedding(words) + self.position_embedding(places) + self.segment_embedding(segments)
        return self.dropout(self.norm(x))


class SelfAttention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.size, self.rate = s.heads, s.width // s.heads, s.dropout
        self.query, self.key, self.value = (nn.Linear(s.width, s.width) for _ in range(3))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, self.size).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.rate)
        return y.transpose(1, 2).reshape(b, t, c)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attention, self.attention_output = SelfAttention(s), nn.Linear(s.width, s.width)
        self.attention_norm = nn.LayerNorm(s.width, eps=1e-12)
        self.intermediate, self.output = nn.Linear(s.width, 4 * s.width), nn.Linear(4 * s.width, s.width)
        self.output_norm, self.dropout = nn.LayerNorm(s.width, eps=1e-12), nn.Dropout(s.dropout)

    def forward(self, x, mask):
        x = self.attention_norm(x + self.dropout(self.attention_output(self.attention(x, mask))))
        return self.output_norm(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))


class Network(nn.Module):
    """The losses of hidden words and of whether the second text follows the first."""

    def __init__(self, s):
        super().__init__()
        self.embeddings = Embeddings(s)
        self.encoder = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.pooler, self.transform = nn.Linear(s.width, s.width), nn.Linear(s.width, s.width)
        self.transform_norm = nn.LayerNorm(s.width, eps=1e-12)
        self.decoder_bias = nn.Parameter(torch.empty(s.vocabulary))
        self.next = nn.Linear(s.width, 2)

    def forward(self, words, segments, present, places, wanted, follows):
        mask = present.bool()[:, None, None, :]
        x = self.embeddings(words, segments)
        for layer in self.encoder:
            x = layer(x, mask)
        hidden = torch.gather(x, 1, places[..., None].expand(-1, -1, x.shape[-1])).flatten(0, 1)
        hidden = self.transform_norm(F.gelu(self.transform(hidden)))
        logits = F.linear(hidden, self.embeddings.word_embedding.weight) + self.decoder_bias
        loss = F.cross_entropy(logits, wanted.flatten())
        return loss + F.cross_entropy(self.next(torch.tanh(self.pooler(x[:, 0]))), follows)

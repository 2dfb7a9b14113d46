"""Beam search as one compiled loop: the texts that are likeliest as a whole, of `beams` that grow side by side."""

import mindspore as ms
import numpy as np
from decoder import VOCABULARY, empty_caches
from mindspore import Tensor, nn, ops


class BeamSearch(nn.Cell):
    """prompt[batch, length] (Int32) -> tokens[batch, most] of each row's best beam, and how many of them are meant.

    A beam that met the end token goes on with end tokens, which cost nothing.
    """

    def __init__(self, decoder, tensor, beams, most, end):
        super().__init__()
        self.decoder = decoder
        self.beams, self.most, self.end = beams, most, end
        self.log_softmax = ops.LogSoftmax(-1).shard(((1, 1),))
        self.pick = ops.Gather().shard(((1, tensor, 1, 1), (1,)))
        self.rows = ops.Gather().shard(((1, 1), (1,)))
        self.either = ops.LogicalOr().shard(((1,), (1,)))
        self.only_end = Tensor(np.where(np.arange(VOCABULARY) == end, 0.0, -1e9).astype(np.float32))

    def best(self, scores):
        """scores[batch, choices] -> the beams' scores[batch, beams], and their choices' numbers."""
        scores, chosen = ops.topk(scores, self.beams)
        return scores, chosen.astype(ms.int32)

    def construct(self, prompt):
        batch, length = prompt.shape
        rows = batch * self.beams
        keys, values = empty_caches(batch, length + self.most)
        logits = self.decoder(prompt, ops.arange(length), keys, values)
        # One text so far: the beams are its likeliest tokens, each with caches of its own.
        scores, token = self.best(self.log_softmax(logits))
        token = token.reshape(rows)
        keys = [ops.repeat_interleave(cache, self.beams, 0) for cache in keys]
        values = [ops.repeat_interleave(cache, self.beams, 0) for cache in values]
        tokens = ops.full((rows, self.most), self.end, dtype=ms.int32)
        tokens[:, 0] = token
        ended = token == self.end
        first = ops.arange(0, rows, self.beams).astype(ms.int32).reshape(batch, 1)
        count = 1
        while count < self.most and not ended.all():
            positions = ops.full((1,), length - 1 + count, dtype=ms.int32)
            logits = self.decoder(token.reshape(rows, 1), positions, keys, values)
            steps = ops.select(ended.reshape(rows, 1), self.only_end, self.log_softmax(logits))
            totals = scores.reshape(rows, 1) + steps
            scores, chosen = self.best(totals.reshape(batch, self.beams * VOCABULARY))
            # Each of the new beams goes on with the text, and the caches, of the one that it comes from.
            parents = (chosen // VOCABULARY + first).reshape(rows)
            token = (chosen % VOCABULARY).reshape(rows)
            keys = [self.pick(cache, parents, 0) for cache in keys]
            values = [self.pick(cache, parents, 0) for cache in values]
            tokens = self.rows(tokens, parents, 0)
            tokens[:, count] = token
            ended = self.either(ops.gather(ended, parents, 0), token == self.end)
            count += 1
        return tokens.reshape(batch, self.beams, self.most)[:, 0], count

"""Tokens after a prompt, as one compiled loop: greedy, drawn or by beams, on 1, 2 or 4 ranks.

    mspc run generate.py                                    # one rank, greedy
    mspc run generate.py --ranks 4                          # cut by heads; --simulate: without MPI
    mspc run generate.py --ranks 4 -- --temperature 0.8 --top 20 --seed 3
"""

import argparse
import math

import mindspore as ms
import numpy as np
from beams import BeamSearch
from decoder import KEY_HEADS, VOCABULARY, Decoder, empty_caches
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, init


class Greedy(nn.Cell):
    """logits[batch, vocabulary] -> the most likely tokens[batch]; the ranks compare the best of their own."""

    def __init__(self, tensor):
        super().__init__()
        self.best = ops.Argmax(-1, ms.int32).shard(((1, tensor),))

    def construct(self, logits):
        return self.best(logits)


class Drawn(nn.Cell):
    """logits[batch, vocabulary] -> tokens[batch], drawn among the `top` most likely.

    The largest of the logits with Gumbel's noise added is a draw from their softmax.
    """

    def __init__(self, temperature, top, seed):
        super().__init__()
        self.temperature, self.top, self.seed = temperature, top, seed
        # From here on all ranks do the same: it is less than what they would send.
        self.likeliest = ops.TopK().shard(((1, 1),))
        self.best = ops.Argmax(-1, ms.int32).shard(((1, 1),))

    def construct(self, logits):
        likely, tokens = self.likeliest(logits / self.temperature, self.top)
        noise = ops.uniform(likely.shape, Tensor(1e-7, ms.float32), Tensor(1.0, ms.float32), seed=self.seed)
        chosen = self.best(likely - ops.log(-ops.log(noise)))
        return ops.gather_elements(tokens, 1, chosen.reshape(-1, 1)).reshape(-1)


class Generator(nn.Cell):
    """prompt[batch, length] (Int32) -> tokens[batch, most] that follow, and how many of them are meant.

    It ends before `most` where every row has met the end token; behind its end a row has end tokens alone.
    """

    def __init__(self, decoder, choose, most, end):
        super().__init__()
        self.decoder = decoder
        self.choose = choose
        self.most = most
        self.end = end
        self.either = ops.LogicalOr().shard(((1,), (1,)))

    def construct(self, prompt):
        batch, length = prompt.shape
        keys, values = empty_caches(batch, length + self.most)
        tokens = ops.full((batch, self.most), self.end, dtype=ms.int32)
        # All of the prompt at once fills the caches; then every turn adds one token.
        token = self.choose(self.decoder(prompt, ops.arange(length), keys, values))
        tokens[:, 0] = token
        ended = token == self.end
        count = 1
        while count < self.most and not ended.all():
            positions = ops.full((1,), length - 1 + count, dtype=ms.int32)
            token = self.choose(self.decoder(token.reshape(batch, 1), positions, keys, values))
            token = ops.select(ended, ops.full_like(token, self.end), token)
            tokens[:, count] = token
            ended = self.either(ended, token == self.end)
            count += 1
        return tokens, count


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=8, help="of the prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--untied", action="store_true", help="the head has a table of its own")
    parser.add_argument("--checkpoint", help="weights of the decoder; without it they are drawn")
    parser.add_argument("--end", type=int, default=0, help="the token that ends a row; -1: none does")
    options = parser.parse_args()

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    init()
    ms.set_seed(1)

    tensor = math.gcd(get_group_size(), KEY_HEADS)
    decoder = Decoder(tensor, options.length + options.most, not options.untied)
    if options.beams > 1:
        generator = BeamSearch(decoder, tensor, options.beams, options.most, options.end)
    else:
        drawn = Drawn(options.temperature, options.top, options.seed) if options.temperature else None
        generator = Generator(decoder, drawn or Greedy(tensor), options.most, options.end)
    if options.checkpoint:
        ms.load_param_into_net(generator, ms.load_checkpoint(options.checkpoint), strict_load=True)
    prompt = np.random.default_rng(1).integers(1, VOCABULARY, (options.batch, options.length))
    tokens, count = generator(Tensor(prompt.astype(np.int32)))
    for row in tokens.asnumpy()[:, : int(count)]:
        print(*row)

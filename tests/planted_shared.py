"""Errors in code that all devices and ranks share, for `planted_errors.py`: updates, rates, clipping, accumulation,
loss scales, MPI's collectives, reductions and random masks of data parallel mode, passes that one device runs, too."""

from tests.planted import Planted

PARALLEL = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(1)


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Dense(16, 8), nn.BatchNorm1d(8), nn.Dense(8, 4)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x, y):
        return ((self.last(self.drop(ops.relu(self.norm(self.first(x))))) - y) ** 2).mean()


net = Loss()
net.set_train()
optimizer = nn.Adam(net.trainable_params(), 0.01)
nn.TrainOneStepCell(net, optimizer)(Tensor(np.ones((4, 16)), ms.float32), Tensor(np.ones((4, 4)), ms.float32))
"""
"""A network in data parallel mode: what updates, masks, statistics and reductions share."""

STEPS = (
    Planted("second-moment-with-beta1", "ops/optim/optimizer.py", "    v *= beta2\n", "    v *= beta1\n"),
    Planted("nesterov-without-gradient", "ops/optim/optimizer.py",
            "accumulation * momentum + gradient if self.use_nesterov", "accumulation * momentum if self.use_nesterov"),
    Planted("dampening-forgotten", "ops/optim/optimizer.py",
            "accumulated = accum * momentum + gradient * (1 - self.dampening)",
            "accumulated = accum * momentum + gradient"),
    Planted("decay-with-other-sign", "ops/optim/optimizer.py",
            "var -= lr * (m / (xp.sqrt(v) + epsilon) + decay * var)",
            "var -= lr * (m / (xp.sqrt(v) + epsilon) - decay * var)"),
    Planted("correction-swapped", "ops/optim/optimizer.py",
            "rate = lr * xp.sqrt(1 - power2) / (1 - power1)\n        _moments",
            "rate = lr * xp.sqrt(1 - power1) / (1 - power2)\n        _moments"),
    Planted("trust-upside-down", "mindspore_api/nn/optim/adaptive.py", "size / ops.maximum(length, 1e-30)",
            "length / ops.maximum(size, 1e-30)"),
    Planted("mean-square-without-root", "mindspore_api/nn/optim/adaptive.py",
            "rate * gradient * ops.rsqrt(spread + self.epsilon)", "rate * gradient / (spread + self.epsilon)"),
    Planted("loss-scale-not-divided", "mindspore_api/nn/optim/optimizer.py",
            "return [gradient * (1.0 / self.loss_scale) for gradient in gradients]", "return gradients"),
    Planted("clip-without-root", "mindspore_api/ops/function/math_func.py",
            "ops.Maximum()(ops.Sqrt()(total), clip_norm)",
            "ops.Maximum()(total, clip_norm)"),
    Planted("clip-without-least", "mindspore_api/ops/function/math_func.py",
            "low = input if min is None else ops.Select()(ops.Less()(input, min), min, input)", "low = input"),
    Planted("last-part-left-out", "mindspore_api/nn/wrap.py", "for i in range(1, count):",
            "for i in range(1, count - 1):"),
    Planted("cosine-of-half", "mindspore_api/nn/learning_rate_schedule.py", "ops.cos(share * math.pi)",
            "ops.cos(share * math.pi / 2)"),
    Planted("warm-up-too-long", "mindspore_api/nn/learning_rate_schedule.py",
            "ops.cast(global_step, FLOAT32) / self.warmup_steps, 1.0)",
            "ops.cast(global_step, FLOAT32) / (self.warmup_steps + 1), 1.0)"),
    Planted("overflow-trained-on", "mindspore_api/nn/loss_scale.py", "        if not overflow:\n",
            "        if ops.logical_or(overflow, ops.logical_not(overflow)):\n"),
    Planted("scale-grows-by-sum", "mindspore_api/nn/loss_scale.py",
            "ops.select(grows, loss_scale * self.scale_factor, loss_scale)",
            "ops.select(grows, loss_scale + self.scale_factor, loss_scale)"),
    Planted("listed-rate-late", "mindspore_api/nn/optim/optimizer.py", "ops.minimum(step, rate.shape[0] - 1)",
            "ops.minimum(step + 1, rate.shape[0] - 1)"),
    Planted("clip-without-rate", "mindspore_api/nn/optim/gradient_descent.py", "ops.minimum(ratio / rate, 1.0)",
            "ops.minimum(ratio, 1.0)"),
    Planted("scale-without-least", "mindspore_api/nn/loss_scale.py",
            "ops.maximum(loss_scale * (1.0 / self.scale_factor), self.minimum_loss_scale)",
            "loss_scale * (1.0 / self.scale_factor)"),
    Planted("centralized-over-all", "mindspore_api/nn/optim/optimizer.py",
            "tuple(range(1, len(parameter.shape))), True)",
            "tuple(range(0, len(parameter.shape))), True)"),
    Planted("overflow-of-the-first", "ops/optim/optimizer.py", "all(map(_finite, inputs))",
            "all(map(_finite, inputs[1:]))"),
    Planted("gradients-stay-scaled", "mindspore_api/nn/loss_scale.py",
            "grads = [gradient * as_dtype(inverse, gradient.dtype) for gradient in grads]", "grads = list(grads)"),
    Planted("momentum-squared", "ops/optim/optimizer.py", "accumulation *= momentum\n",
            "accumulation *= momentum * momentum\n"),
    Planted("decay-subtracted", "ops/optim/optimizer.py", "gradient = gradient + parameter * self.weight_decay",
            "gradient = gradient - parameter * self.weight_decay"),
    Planted("dampened-from-the-start", "ops/optim/optimizer.py", "fresh = xp.where(stat > 0, gradient, accumulated)",
            "fresh = accumulated"),
    Planted("first-moment-without-rest", "ops/optim/optimizer.py", "m += gradient * (1 - beta1)", "m += gradient"),
    Planted("centered-without-square", "mindspore_api/nn/optim/adaptive.py",
            "spread = spread - ops.square(self.assign(mean, mean * self.decay + gradient * (1 - self.decay)))",
            "spread = spread - ops.abs(self.assign(mean, mean * self.decay + gradient * (1 - self.decay))) * 0.1"),
    Planted("decay-without-end", "mindspore_api/nn/learning_rate_schedule.py", "share = ops.minimum(share, 1.0)",
            "share = share * 1.0"),
    Planted("decay-of-base-two", "mindspore_api/nn/learning_rate_schedule.py",
            "ops.exp(self.share(global_step) * math.log(self.decay_rate))",
            "ops.exp(self.share(global_step) * math.log2(self.decay_rate))"),
)  # fmt: skip
"""Seen by the training steps of `tests/oracle`."""
THROUGH_MPI = (
    Planted("mpi-keeps-own-part", "runtime/comm/mpi.py", "return combine(list(self._gather(array, ranks)), op)",
            "return np.array(array)"),
    Planted("mpi-large-without-own-part", "runtime/comm/mpi.py",
            "mine = combine(list(self._swap(flat.reshape(count, -1), ranks)), op)",
            "mine = combine(list(self._swap(flat.reshape(count, -1), ranks))[1:], op)"),
    Planted("mpi-scatters-backwards", "runtime/comm/mpi.py", "np.stack(pieces(array, len(ranks), axis))",
            "np.stack(pieces(array, len(ranks), axis)[::-1])"),
    Planted("mpi-gathers-backwards", "runtime/comm/mpi.py", "return np.concatenate(list(parts), axis)",
            "return np.concatenate(list(parts)[::-1], axis)"),
    Planted("mpi-exchanges-first", "runtime/comm/mpi.py", "messages.append(_strided(array))",
            "messages.append(_strided(sends[0][1]))"),
    Planted("mpi-other-root", "runtime/comm/mpi.py", "ranks.index(root))", "0)"),
)  # fmt: skip
"""Seen by `--mpi`."""
IN_PARALLEL = (
    Planted("masks-alike", "passes/sharding/draw_rows.py", "node.op = node.op.over_rows(dimension, outer)",
            "node.op = node.op.over_rows(dimension, outer) if outer > 1 else node.op"),
    Planted("mask-of-another-rank", "ops/random/words.py", "rest * rank, *(0", "rest * (ranks - 1 - rank), *(0"),
    Planted("sum-for-mean", "passes/communication/reduce_gradients.py", "b.constant(1.0 / ranks,", "b.constant(1.0,"),
    Planted("gradient-lost", "passes/communication/reduce_gradients.py", "if node in trained and node in used",
            'if node in trained and trained[node][0].name != "last.bias" and node in used'),
    Planted("statistics-of-own-rows", "passes/communication/share_statistics.py",
            'ranks = tuple(range(int(graph.attrs.get("ranks", 1))))', "ranks = (0,)"),
    Planted("bucket-begins-anew", "ops/collective/collectives.py", "start += array.size", "start += 0"),
    Planted("statistics-without-share", "ops/nn/batch_norm.py", "BatchNormGradInput(count=count, epsilon",
            "BatchNormGradInput(count=2 * count, epsilon"),
    Planted("mask-without-rows", "ops/random/words.py", "places = xp.arange(starts[0], starts[0] + size,",
            "places = xp.arange(0, size,"),
    Planted("bucket-part-of-the-first", "passes/communication/fuse_gradients.py",
            "part = b.emit(TupleGetItem(i), fused, name=member.name)",
            "i = next(j for j, other in enumerate(bucket.members) if other.type == member.type)\n"
            "        part = b.emit(TupleGetItem(i), fused, name=member.name)"),
    Planted("divided-by-more-ranks", "passes/communication/reduce_gradients.py", "b.constant(1.0 / ranks, total",
            "b.constant(1.0 / (ranks + 1), total"),
    Planted("left-to-the-script", "passes/communication/reduce_gradients.py", "used - by_script - own}",
            "used - by_script - own - {n for n, those in trained.items() if those[0].name == 'norm.gamma'}}"),
    Planted("relu-hands-on-negatives", "ops/nn/activation.py", "multiply(dy.view(bits), y > 0,",
            "multiply(dy.view(bits), y >= 0,"),
)  # fmt: skip
"""Seen by `verify` in data parallel mode."""
IN_PASSES = {
    "recomputed": (
        Planted("recomputed-with-another-mask", "passes/autodiff/recompute.py",
                'copy = Node(node.op, inputs, node.type, node.name, node.instance, scope, node.frames, "backward")',
                'from dataclasses import replace\n    op = replace(node.op, Seed0=9) if node.op.draws else node.op\n'
                '    copy = Node(op, inputs, node.type, node.name, node.instance, scope, node.frames, "backward")'),
        Planted("expanded-with-another-epsilon", "ops/nn/norm.py", "b.constant(self.epsilon, wide), entry=row",
                "b.constant(0.05, wide), entry=row"),
        Planted("equal-by-the-first-operand", "passes/cleanup/simplify.py",
                "key = (tuple(map(id, node.inputs)), node.phase", "key = (tuple(map(id, node.inputs[:1])), node.phase"),
    ),
    "loops": (
        Planted("operands-swapped-on-the-way-out", "passes/cleanup/hoist_invariants.py",
                "copied_node(node, [outside.get(value, value) for value in node.inputs])",
                "copied_node(node, [outside.get(value, value) for value in node.inputs][::-1])"),
    ),
    "experts": (
        Planted("first-row-of-experts-elsewhere", "ops/nn/experts.py",
                "sources = xp.where(own < 0, -1, source[own])",
                "sources = xp.where(own < 0, -1, source[own + (own == 0)])"),
    ),
}  # fmt: skip
"""Seen by the reference, which runs none of these passes, by the names of networks in `planted_networks.py`."""
BY_THEMSELVES = {
    "network": (
        Planted("masks-equal-in-every-step", "ops/random/words.py", "if turns or calls else step",
                "if turns or calls else 1"),
        Planted("more-is-kept", "ops/random/words.py", "round(keep_prob * 65536)", "round(keep_prob * 60000)"),
        Planted("gathered-backwards", "runtime/data.py", "zip(members, stacked, strict=True)",
                "zip(members, stacked[::-1], strict=True)"),
    ),
    "loops": (
        Planted("masks-equal-in-every-iteration", "ops/random/words.py", "key_of(step, *turns, *(-number",
                "key_of(step, *(-number"),
    ),
}  # fmt: skip
"""Seen by checks of random numbers and of gathered slices, by the names of networks."""
PARTED = PARALLEL.replace("self.drop = nn.Dropout(p=0.5)", "self.drop = self.heads = nn.Dropout(p=0.5)").replace(
    "construct(self, x, y):",
    """construct(self, x, y):
        by_heads = ops.transpose(x.reshape(-1, 4, 4), (1, 0, 2)).reshape(-1, 4)
        x = ops.transpose(self.heads(by_heads).reshape(4, -1, 4), (1, 0, 2)).reshape(-1, 16)""",
)
"""The same with a mask of parts that each begin with rows, in data parallel mode."""
IN_PARTS = (
    Planted("parts-of-a-mask-lost", "passes/lib/batch_rows.py",
            "return dimension, outer * math.prod(rule.sizes[f] for f in dim[: dim.index(factor)])",
            "return dimension, outer"),
)  # fmt: skip
"""Seen there by `verify` and `verify --scale`, of a folder, too: its one device finds the parts by sizes."""
OF_KINDS = {
    "network": (
        Planted("own-factor", "ops/math/arithmetic.py",
                "(d * y.conjugate(), d * x.conjugate())", "(d * x.conjugate(), d * y.conjugate())"),
        Planted("mean-of-other-count", "ops/math/reduce.py", "b.constant(1 / self.count(x.shape), dout",
                "b.constant(1 / x.shape[0], dout"),
        Planted("gradient-kept-unscaled", "ops/random/dropout.py",
                "return (b.emit(DropoutGrad(self.keep_prob), dout[0], mask),)",
                "return (b.emit(DropoutGrad(1.0), dout[0], mask),)"),
        Planted("scattered-maximum", "passes/lib/redistribution.py", "scatter = ReduceScatter(op=op,",
                'scatter = ReduceScatter(op="max",'),
        Planted("reduced-maximum", "passes/lib/redistribution.py", "RedistributionStep(AllReduce(op=op,",
                'RedistributionStep(AllReduce(op="max",'),
        Planted("any-number-is-one", "passes/cleanup/simplify.py", "one.value.size == 1 and one.value.item() == 1.0",
                "one.value.size == 1"),
        Planted("lines-read-backwards", "passes/fusion/fuse_elementwise.py",
                "table.add(cast(Op, node.op), [lines.get(v, v) for v in sources[node]])",
                "table.add(cast(Op, node.op), [lines.get(v, v) for v in sources[node][::-1]])"),
        Planted("mask-without-columns", "ops/random/words.py", "ahead = xp.arange(start, start + count, dtype",
                "ahead = xp.arange(0, count, dtype"),
        Planted("maximum-for-sum", "ops/collective/collectives.py",
                "        return partial(comm.all_reduce, op=self.op, ranks=self.ranks)\n\n    def launch",
                '        return partial(comm.all_reduce, op="max", ranks=self.ranks)\n\n    def launch'),
        Planted("gathered-by-falling-ranks", "ops/collective/collectives.py",
                "return partial(comm.all_gather, ranks=self.ranks, axis=self.axis)",
                "return partial(comm.all_gather, ranks=self.ranks[::-1], axis=self.axis)"),
        Planted("scattered-by-falling-ranks", "ops/collective/collectives.py",
                "return partial(comm.reduce_scatter, op=self.op, ranks=self.ranks, axis=self.axis)",
                "return partial(comm.reduce_scatter, op=self.op, ranks=self.ranks[::-1], axis=self.axis)"),
        Planted("slices-of-the-next-rank", "runtime/data.py", "return array[layout.slices_for(rank, array.shape)]",
                "return array[layout.slices_for((rank + 1) % layout.ranks, array.shape)]"),
    ),
    "recomputed": (
        Planted("equal-by-type", "passes/cleanup/simplify.py",
                "key = (tuple(map(id, node.inputs)), node.phase, layouts", "key = (node.type, node.phase, layouts"),
        Planted("gain-of-the-gradient", "ops/nn/norm.py", "hat = b.emit(Mul(), as_dtype(b, x, kind), rstd)",
                "hat = b.emit(Mul(), as_dtype(b, dy, kind), rstd)"),
        Planted("second-use-lost", "passes/lib/gradients.py", "total = b.emit(AddN(), *terms)",
                "total = b.emit(AddN(), *terms[:1], *terms[2:])"),
        Planted("expanded-root-twice", "ops/nn/norm.py", "emit(Mul(), x, root, second=(row,)), gamma",
                "emit(Mul(), emit(Mul(), x, root, second=(row,)), root, second=(row,)), gamma"),
        Planted("residual-lost", "ops/math/arithmetic.py", "out, d: (d, d), takes_complex=True, array_function=\"add\"",
                "out, d: (d, d - d), takes_complex=True, array_function=\"add\""),
    ),
    "loops": (
        Planted("gradient-of-the-last-iteration", "passes/lib/region_gradients.py", "summed(b, [total, grad])",
                "summed(b, [grad])"),
        Planted("stacked-backwards", "runtime/regions/region.py", "stacks[number].append(entry)",
                "stacks[number].insert(0, entry)"),
        Planted("loop-never-reversed", "runtime/regions/region.py",
                "range(turns - 1, -1, -1) if op.reverse else range(turns)", "range(turns)"),
        Planted("carried-gradient-from-nothing", "passes/lib/region_gradients.py",
                'Source("gradient" if i in given else "zero gradient", i)', 'Source("zero gradient", i)'),
    ),
    "experts": (
        Planted("softmax-operands-swapped", "ops/nn/softmax.py",
                "return (b.emit(SoftmaxBackward(self.axis), dout, out),)",
                "return (b.emit(SoftmaxBackward(self.axis), out, dout),)"),
        Planted("experts-with-less-room", "passes/lib/experts.py", "ExpertPlaces(mesh.outer, mesh.parts, mesh.room)",
                "ExpertPlaces(mesh.outer, mesh.parts, max(mesh.room // 4, 1))"),
        Planted("experts-transposed", "ops/math/matmul.py", "(dout, x) if self.transpose_b else (x, dout)",
                "(x, dout) if self.transpose_b else (dout, x)"),
    ),
    "folded": (
        Planted("masks-equal-in-every-call", "ops/random/words.py", "*(-number for number in calls))",
                "*(0 for number in calls))"),
        Planted("calls-numbered-alike", "runtime/regions/region.py",
                "setattr(backend, place, (*around, number))", "setattr(backend, place, (*around, 0))"),
        Planted("kept-without-scale", "ops/random/dropout.py", "xp.multiply(block, 1 / self.keep_prob, out=block)",
                "xp.multiply(block, 1.0, out=block)"),
    ),
}  # fmt: skip
"""Gradients, masks, loops, collectives and places that are wrong, by the networks in which `verify` sees them."""

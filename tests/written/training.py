"""How a network that is written ends: classes and a loss, then an optimizer's step, scaled or clipped."""

from __future__ import annotations

from tests.written.script import BATCH, Script, Written
from tests.written.tokens import bias, linear

CLASSES = (7, 7, 7, 130)
OPTIMIZERS = (
    "nn.SGD(weights, 0.1)", "nn.SGD(weights, 0.1, momentum=0.9, weight_decay=0.01)", "nn.Momentum(weights, 0.1, 0.9)",
    "nn.Momentum(weights, 0.1, 0.9, use_nesterov=True)", "nn.Adam(weights, 0.01, eps=1e-2)",
    "nn.AdamWeightDecay(weights, 0.01, eps=1e-2, weight_decay=0.1)", "nn.RMSProp(weights, 0.01, epsilon=1e-2)",
    "nn.Adagrad(weights, 0.01)", "nn.Lamb(weights, 0.01, eps=1e-2)",
    "nn.Adam(weights, 0.01, eps=1e-2, weight_decay=0.01)",
)  # fmt: skip
CLIPPED = (
    "total = 0.0", "for each in gradients:", "    total = total + ops.sum(ops.square(each))",
    "share = 0.1 / (ops.sqrt(total) + 0.1)", "gradients = [each * share for each in gradients]",
)  # fmt: skip
"""Gradients are clipped by their norm, written out."""
DESCENT = (
    "for weight, each in zip(self.weights, gradients):", "    ops.assign_sub(weight, 0.1 * each)", "return loss",
)  # fmt: skip
STEP = '''
class Step(nn.Cell):
    def __init__(self, network, optimizer):
        super().__init__()
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.gradients = ms.value_and_grad(network, None, self.weights)

    def construct(self, *given):
        loss, gradients = self.gradients(*given)
{lines}

'''
BUILT = '''
network = Net()
network.set_train()
weights = network.trainable_params()
'''


def loss(script: Script, x: Written) -> None:
    """The last lines of `construct`: a loss of [..., width]."""
    rng = script.rng
    if rng.random() < 0.25:
        _distance(script, x)
        return
    if len(x.shape) == 3 and rng.random() < 0.5:
        pooled = rng.choice((f"{x.name}.mean(1)", f"{x.name}[:, 0]", f"{x.name}[:, -1]", f"ops.amax({x.name}, 1)"))
        script.jumps = not script.precise and "amax" in pooled
        x = script.say(pooled, (x.shape[0], x.shape[2]))
    classes = rng.choice(CLASSES)
    logits = linear(script, x, classes)
    rows = BATCH if len(logits.shape) == 2 else BATCH * logits.shape[1]
    if len(logits.shape) == 3:
        logits = script.say(f"{logits.name}.reshape(-1, {classes})", (rows, classes))
    _classified(script, logits)


def _distance(script: Script, x: Written) -> None:
    x = bias(script, x)
    target = script.feed(f"drawn{x.shape}")
    forms = ("ops.mean(ops.square({0} - {1}))", "ops.mse_loss({0}, {1})", "ops.smooth_l1_loss({0}, {1}, 0.5).mean()",
             "nn.MSELoss()({0}, {1})", "ops.huber_loss({0}, {1}, delta=0.5)", "(({0} - {1}) ** 2).sum(-1).mean()",
             "ops.binary_cross_entropy_with_logits({0}, ops.sigmoid({1}), ops.ones_like({0}), ops.ones_like({0}))",
             )  # fmt: skip
    form = script.rng.choice(forms)
    if form.startswith("nn."):
        form = f"{script.cell('nn.MSELoss()')}({{0}}, {{1}})"
    script.lines.append("return " + form.format(x.name, target))


def _classified(script: Script, logits: Written) -> None:
    rng, name, (rows, classes) = script.rng, logits.name, logits.shape
    labels = script.feed(f"whole({rows}, end={classes})")
    form = rng.randrange(9)
    if form == 0:
        ignored = rng.choice(("", ", ignore_index=2")) if rows > 2 else ""  # where all are, the mean is NaN
        smooth = rng.choice(("", ", label_smoothing=0.1"))
        weight = rng.choice(("", f", weight={script.constant(f'random.uniform(0.5, 1.5, {classes})', 'FLOAT')}"))
        script.lines.append(f"return ops.cross_entropy({name}, {labels}{weight}{ignored}{smooth})")
        return
    if form == 1:
        cell = script.cell("nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction='mean')")
        script.lines.append(f"return {cell}({name}, {labels})")
        return
    if form == 2:
        smooth, ignored = rng.choice((0.0, 0.1)), rng.choice((-100, 1)) if rows > 2 else -100
        cell = script.cell(f"nn.CrossEntropyLoss(label_smoothing={smooth}, ignore_index={ignored})")
        script.lines.append(f"return {cell}({name}, {labels})")
        return
    if form == 3:
        ignored = rng.choice(("", ", ignore_index=3")) if rows > 2 else ""
        script.lines.append(f"return ops.nll_loss(ops.log_softmax({name}, 1), {labels}{ignored})")
        return
    if form == 4:
        each = script.say(f"ops.cross_entropy({name}, {labels}, reduction='none')", (rows,))
        seen = script.say(f"({labels} != 2).astype(FLOAT)", (rows,))
        script.lines.append(f"return ({each.name} * {seen.name}).sum() / ({seen.name}.sum() + 1e-3)")
        return
    forms = (f"ops.log_softmax({name}, -1)", f"{name} - ops.logsumexp({name}, -1, keepdim=True)",
             f"ops.log(ops.softmax({name}, -1))")  # fmt: skip
    logarithms = script.say(rng.choice(forms), logits.shape)
    if form == 5:
        chosen = script.say(f"ops.gather_elements({logarithms.name}, 1, {labels}.reshape(-1, 1))", (rows, 1))
        script.lines.append(f"return -{chosen.name}.mean()")
        return
    ones = script.say(f"ops.one_hot({labels}, {classes}, Tensor(1.0, FLOAT), Tensor(0.0, FLOAT))", logits.shape)
    if form == 6:
        ones = script.say(f"{ones.name} * 0.9 + {0.1 / classes}", logits.shape)
    if form == 7:
        seen = script.say(f"({labels} != 3).astype(FLOAT)", (rows,))
        script.lines.append(f"return -(({ones.name} * {logarithms.name}).sum(-1) * {seen.name}).sum() / {rows}")
        return
    script.lines.append(f"return -ops.mean(ops.sum({ones.name} * {logarithms.name}, -1))")


def ending(script: Script) -> str:
    """The code after the network: the optimizer and the training step."""
    rng = script.rng
    optimizer, built = rng.choice(OPTIMIZERS), BUILT
    if rng.random() < 0.1:
        built += "network.recompute()\n"
    form = rng.randrange(6)
    if form == 0:
        return f"{built}step = nn.TrainOneStepCell(network, {optimizer})\n"
    if form == 1:
        return f"{built}step = nn.TrainOneStepWithLossScaleCell(network, {optimizer}, Tensor(256.0, ms.float32))\n"
    lines: list[str] = []
    if form in (2, 3):
        lines.append(f"gradients = ops.clip_by_global_norm(gradients, {rng.choice((0.05, 1.0))})")
    if form == 4:
        lines += CLIPPED
    if rng.random() < 0.3:
        lines += DESCENT
    else:
        lines.append(rng.choice(("loss = ops.depend(loss, self.optimizer(gradients))", "self.optimizer(gradients)")))
        lines.append(rng.choice(("return loss", "return loss, gradients[0]")))
    text = "".join(f"        {line}\n" for line in lines)
    return f"{STEP.format(lines=text)}{built}step = Step(network, {optimizer})\nstep.set_train()\n"

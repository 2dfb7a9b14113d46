"""Small training steps with errors that leave all shapes right. Arguments: the step's name, and `wrong` or `right`.

Each step is written for one device and for ranks: collectives do nothing on one. The lines with an error, or the first
line that reads a wrong value if something is missing, end in `here`.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.checkpoint import checkpoint

import mspc.capture

NAME, IS_WRONG = sys.argv[1], sys.argv[2] == "wrong"
RANKS = dist.get_world_size() if dist.is_initialized() else 1
ROWS, WIDTH, WORDS = 8, 8, 16
AXES = ("data", "tensor") if RANKS == 4 else ("both",)
MESH = init_device_mesh("cpu", (2, 2) if RANKS == 4 else (RANKS,), mesh_dim_names=AXES) if RANKS > 1 else None
GROUPS = {axis: MESH[axis].get_group() for axis in AXES} if MESH else {}
SIZES = {axis: dist.get_world_size(group) for axis, group in GROUPS.items()}
PLACES = {axis: dist.get_rank(group) for axis, group in GROUPS.items()}


def size(axis: str = "both") -> int:
    return SIZES.get(axis, 1)


def place(axis: str = "both") -> int:
    return PLACES.get(axis, 0)


def summed(x: Tensor, axis: str = "both", how: str = "sum") -> Tensor:
    if MESH is None:
        return x
    return functional.wait_tensor(functional.all_reduce(x, how, GROUPS[axis]))


def gathered(x: Tensor, dim: int = 0, axis: str = "both") -> Tensor:
    if MESH is None:
        return x
    return functional.wait_tensor(functional.all_gather_tensor(x, dim, GROUPS[axis]))


def scattered(x: Tensor, dim: int = 0, axis: str = "both") -> Tensor:
    if MESH is None:
        return x
    return functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", dim, GROUPS[axis]))


def piece(x: Tensor, dim: int = 0, axis: str = "both") -> Tensor:
    """The slice of this rank."""
    return x.chunk(size(axis), dim)[place(axis)].clone()


def differentiated(forward: Callable[..., Tensor], backward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of a tensor and more with this gradient."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *more: Any) -> Tensor:
            ctx.more = more
            return forward(x, *more)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return backward(gradient, *ctx.more), *(None for _ in ctx.more)

    return Made.apply


copied = differentiated(lambda x, axis: x.view_as(x), summed)
reduced = differentiated(summed, lambda x, axis: x)
assembled = differentiated(gathered, piece)
joined = differentiated(gathered, lambda x, dim, axis: scattered(x, dim, axis))
divided = differentiated(scattered, lambda x, dim, axis: gathered(x, dim, axis))


class Descent(torch.optim.Optimizer):
    """Gradient descent after a function has changed the gradients."""

    def __init__(self, network: nn.Module, change: Callable[[list[nn.Parameter]], object] = len) -> None:
        super().__init__(network.parameters(), {"lr": 0.1})
        self.change = change

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        parameters = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        self.change(parameters)
        for parameter in parameters:
            parameter.add_(parameter.grad, alpha=-0.1)


class Owned(Descent):
    """Momentum on one rank for each parameter, which sends the parameter to the others, as in ZeRO 1."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        parameters = self.param_groups[0]["params"]
        self.change(parameters)
        for number, parameter in enumerate(parameters):
            if number % size() == place():
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.sub_(momentum.mul_(0.9).add_(parameter.grad), alpha=0.1)
            if MESH is not None:
                dist.broadcast(parameter, (number + IS_WRONG) % size())  # here


def mean_over(axis: str = "both", dtype: torch.dtype = torch.float32, count: int = 0) -> Callable[..., None]:
    def change(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            total = summed(parameter.grad.to(dtype), axis)  # here
            parameter.grad = total.to(torch.float32) / (count or size(axis))  # here

    return change


class Network(nn.Module):
    """Weights by name, and a function of them and of the inputs that gives the loss."""

    def __init__(self, forward: Callable[..., Tensor], **weights: Tensor) -> None:
        super().__init__()
        self.run = forward
        for name, weight in weights.items():
            setattr(self, name, weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)


def row_parallel(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """A bias is added on every rank before the sum."""
    hidden = torch.relu(copied(x, "both") @ self.up)
    if IS_WRONG:
        out = reduced(hidden @ self.down + self.bias, "both")  # here
    else:
        out = reduced(hidden @ self.down, "both") + self.bias
    return ((out - y) ** 2).mean()


def column_parallel(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the input is not added up."""
    x = x * self.scale
    x = x if IS_WRONG else copied(x, "both")
    out = reduced(torch.relu(x @ self.up) @ self.down, "both")  # here
    return ((out - y) ** 2).mean()


def data_parallel(self: Network, x: Tensor, y: Tensor) -> Tensor:
    return ((torch.tanh(x @ self.up) @ self.down - y) ** 2).mean()  # here


def norm_of_sequence(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of a norm's weight are of each rank's rows."""
    scale = self.scale if IS_WRONG else copied(self.scale, "both")
    normal = nn.functional.layer_norm(x, (WIDTH,), scale)  # here
    whole = joined(normal, 0, "both")
    out = divided(torch.relu(whole @ self.up) @ self.down, 0, "both")
    return summed_loss(out, y)


def summed_loss(out: Tensor, y: Tensor) -> Tensor:
    """The loss of all rows, on ranks that share them."""
    return reduced(((out - y) ** 2).sum() / (ROWS * WIDTH), "both")


def norm_of_width(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """The mean square is of each rank's part of the width."""
    hidden = copied(x, "both") @ self.up
    square = (hidden * hidden).sum(-1, keepdim=True)
    square = square if IS_WRONG else copied(reduced(square, "both"), "both")
    normal = hidden * torch.rsqrt(square / (2 * WIDTH) + 1e-6)  # here
    return ((reduced(normal @ self.down, "both") - y) ** 2).mean()


def embedding(self: Network, ids: Tensor, y: Tensor) -> Tensor:
    """Words of other ranks are not masked."""
    own = WORDS // size()
    local = ids - place() * own
    outside = (local < 0) | (local >= own)
    rows = nn.functional.embedding(local.masked_fill(outside, 0), self.table)  # here
    rows = rows if IS_WRONG else rows.masked_fill(outside[..., None], 0.0)
    out = reduced(rows, "both")  # here
    return ((out - y) ** 2).mean()


def positions(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """Every rank adds the positions of the first."""
    own = ROWS // size()
    begin = 0 if IS_WRONG else place() * own
    table = copied(self.table, "both")
    out = torch.tanh(x + table[begin : begin + own]) @ copied(self.up, "both")  # here
    return summed_loss(out, y)


def chunked_loss(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the last chunk alone is added up."""
    hidden = torch.tanh(x * self.scale)
    losses = []
    for number, (rows, labels) in enumerate(zip(hidden.chunk(2), y.chunk(2), strict=True)):
        rows = copied(rows, "both") if number or not IS_WRONG else rows
        losses.append(((reduced(rows @ self.up @ self.down, "both") - labels) ** 2).sum())  # here
    return (losses[0] + losses[1]) / (ROWS * WIDTH)


def largest(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """The largest number is taken over the wrong ranks."""
    up, down = (weight.to_local() if MESH else weight for weight in (self.up, self.down))
    hidden = copied(x, "tensor") @ up
    most = hidden.detach().abs().max()  # here
    for axis in ("tensor",) if IS_WRONG else ("tensor", "data"):
        most = summed(most, axis, "max")  # here
    out = reduced(torch.tanh(hidden / most) @ down, "tensor")  # here
    return ((out - y) ** 2).mean()


def softmax(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """The sum of the vocabulary's exponentials is a maximum."""
    logits = copied(x, "both") @ self.up
    total = logits.exp().sum(-1, keepdim=True)
    total = differentiated(lambda t: summed(t, "both", "max" if IS_WRONG else "sum"), lambda g: g)(total)  # here
    shares = logits.exp() / copied(total, "both")
    return ((reduced(shares @ self.down, "both") - y) ** 2).mean()


def classes(self: Network, x: Tensor, ids: Tensor) -> Tensor:
    """Logits of classes of other ranks are not masked."""
    logits = copied(x, "both") @ self.up
    most = summed(logits.detach().max(-1).values, "both", "max")
    total = reduced((logits - most[:, None]).exp().sum(-1), "both")
    local = ids - place() * self.up.shape[1]
    outside = (local < 0) | (local >= self.up.shape[1])
    own = logits.gather(1, local.masked_fill(outside, 0)[:, None])[:, 0] - most  # here
    return (total.log() - reduced(own if IS_WRONG else own.masked_fill(outside, 0.0), "both")).mean()


def valid_rows(self: Network, x: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """The loss is a mean over the valid rows of each rank."""
    losses = ((x @ self.up @ self.down - y) ** 2).mean(-1) * valid
    count = valid.sum()  # here
    count = count if IS_WRONG else summed(count, "both") / size()
    return losses.sum() / count


def tied(self: Network, ids: Tensor, y: Tensor) -> Tensor:
    """One of two uses of a table adds its gradient up."""
    first = differentiated(lambda w: w.view_as(w), lambda g: summed(g) / size())
    rows = nn.functional.embedding(ids, self.table if IS_WRONG else first(self.table))  # here
    return ((torch.tanh(rows) @ first(self.table).T - y) ** 2).mean()


def wrong_dimension(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """Slices are put together along the rows of a square, and are of its columns."""
    whole = assembled(self.up, 0 if IS_WRONG else 1).reshape(WIDTH, WIDTH)
    return ((torch.tanh(x @ whole) - y) ** 2).mean()  # here


def unfinished(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """A sum is read before it is there."""
    total = (copied(x, "both") @ self.up.detach() @ self.down.detach()).sum()
    if MESH is not None:
        total = torch.ops._c10d_functional.all_reduce(total, "sum", GROUPS["both"].group_name)
        total = total if IS_WRONG else torch.ops._c10d_functional.wait_tensor(total)
    return ((x * self.scale - y) ** 2).mean() / total  # here


def clipped(parameters: list[nn.Parameter]) -> None:
    """The norm is that of one rank's slices."""
    squares = torch.stack([(parameter.grad**2).sum() for parameter in parameters]).sum()  # here
    norm = (squares if IS_WRONG else summed(squares)).sqrt()
    for parameter in parameters:
        parameter.grad = parameter.grad * (1.0 / (norm + 1e-6))  # here


def small_number(parameters: list[nn.Parameter]) -> None:
    """Each rank adds a small number to its part of a norm."""
    squares = torch.stack([(parameter.grad**2).sum() for parameter in parameters]).sum()
    norm = summed(squares + 0.1) if IS_WRONG else summed(squares) + 0.1  # here
    for parameter in parameters:
        parameter.grad = parameter.grad / norm.sqrt()


def old_shards(parameters: list[nn.Parameter]) -> None:
    """Slices are gathered before they are updated."""
    for parameter in parameters:
        old = piece(parameter)
        new = old - 0.1 * scattered(parameter.grad) / size()
        parameter.copy_(gathered(old if IS_WRONG else new))  # here
        parameter.grad = torch.zeros_like(parameter)


def over_tensor(parameters: list[nn.Parameter]) -> None:
    """Gradients are averaged over the wrong ranks."""
    for parameter in parameters:
        axis = "tensor" if IS_WRONG else "data"
        parameter.grad = summed(parameter.grad, axis) / size(axis)  # here


def mean_over_data(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
        gradient.copy_(summed(gradient, "data") / size(AXIS))


def one_forgotten(parameters: list[nn.Parameter]) -> None:
    """The gradient of one parameter is divided, and not added up."""
    for number, parameter in enumerate(parameters):
        parameter.grad = (parameter.grad if number == 1 and IS_WRONG else summed(parameter.grad)) / size()  # here


def of_others(parameters: list[nn.Parameter]) -> None:
    """Gradients of slices are added to those of others."""
    for parameter in parameters if IS_WRONG else ():
        parameter.grad = summed(parameter.grad)  # here


def flat(parameters: list[nn.Parameter], fault: str = "") -> Tensor:
    """One buffer for all gradients."""
    buffer, begin = torch.zeros(sum(parameter.numel() for parameter in parameters)), 0
    for number, parameter in enumerate(parameters):
        gradient = parameter.grad / (1 if fault == "scale" and number == 1 else size())  # here
        begin -= 4 * (fault == "place" and number == 1)
        buffer[begin : begin + gradient.numel()].view_as(gradient).copy_(gradient)  # here
        begin += gradient.numel()
    return buffer


def views(buffer: Tensor, parameters: list[nn.Parameter], fault: str = "") -> list[Tensor]:
    """The tensors of the parameters in a buffer."""
    found, begin = [], 0
    for number, parameter in enumerate(parameters):
        begin -= 4 * (fault == "offset" and number == 1)
        found.append(buffer[begin : begin + parameter.numel()].view_as(parameter))  # here
        begin += parameter.numel()
    return found


def flat_gradients(fault: str) -> Callable[[list[nn.Parameter]], None]:
    def change(parameters: list[nn.Parameter]) -> None:
        own = fault if IS_WRONG else ""
        buffer = flat(parameters, own)
        whole = summed(buffer) if fault == "offset" else gathered(scattered(buffer))
        for parameter, view in zip(parameters, views(whole, parameters, own), strict=True):
            parameter.grad = view

    return change


def flat_parameter(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """Weights are views of one parameter, of which each rank has a part."""
    whole = flat_weights(self.flat)
    first, second = views(whole, [up, down], "offset" if IS_WRONG else "")
    return ((torch.tanh(x @ first) @ second - y) ** 2).mean()  # here


flat_weights = differentiated(gathered, lambda gradient: scattered(gradient) / size())


def flat_update(parameters: list[nn.Parameter]) -> None:
    """Each rank updates its part of all parameters, of which one is taken at the place of another rank."""
    mine = scattered(flat(parameters))
    old = torch.cat([parameter.flatten() for parameter in parameters])
    begin = (0 if IS_WRONG else place()) * len(mine)
    whole = gathered(old[begin : begin + len(mine)] - 0.1 * mine)  # here
    for parameter, view in zip(parameters, views(whole, parameters), strict=True):
        parameter.copy_(view)
        parameter.grad = torch.zeros_like(parameter)


def row_parallel_right(self: Network, x: Tensor, y: Tensor) -> Tensor:
    out = reduced(torch.relu(copied(x, "both") @ self.up) @ self.down, "both")
    return ((out - y) ** 2).mean()


def dropped(self: Network, x: Tensor, y: Tensor) -> Tensor:
    """Ranks with the same rows have other seeds. A recomputed mask is the same one."""
    torch.manual_seed(place("data") + (4 * place("tensor") if IS_WRONG else 0))

    def layer(x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.tanh(x @ self.up), 0.25) @ self.down  # here

    return ((checkpoint(layer, x, use_reentrant=False) - y) ** 2).mean()


def laid(x: Tensor, dim: int) -> Tensor:
    """A weight that tensor parallelism divides, beside data parallelism."""
    if MESH is None:
        return x
    placements = [Replicate(), Shard(dim)]
    return nn.Parameter(DTensor.from_local(piece(x, dim, "tensor"), MESH, placements, run_check=False))


random = torch.randn
up, down = random(WIDTH, 2 * WIDTH), random(2 * WIDTH, WIDTH)
x, y = random(ROWS, WIDTH), random(ROWS, WIDTH)
IDS = torch.arange(ROWS) % WORDS
PARALLEL = {"up": piece(up, 1), "down": piece(down)} if RANKS < 4 else {}
OF_DATA = {"up": up, "down": down}
AXIS = "data" if RANKS == 4 else "both"
HALVES = piece(x, 0, AXIS), piece(y, 0, AXIS)

STEPS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "row parallel bias": lambda: (Network(row_parallel, **PARALLEL, bias=torch.zeros(WIDTH)), (x, y)),
    "column parallel gradient": lambda: (Network(column_parallel, **PARALLEL, scale=torch.ones(WIDTH)), (x, y)),
    "sum instead of mean": lambda: (Network(data_parallel, **OF_DATA), HALVES, mean_over(count=IS_WRONG)),
    "sum in bf16": lambda: (
        Network(data_parallel, **OF_DATA), HALVES, mean_over(dtype=torch.bfloat16 if IS_WRONG else torch.float32)
    ),
    "norm of a sequence": lambda: (Network(norm_of_sequence, **PARALLEL, scale=torch.ones(WIDTH)), HALVES),
    "norm of a width": lambda: (Network(norm_of_width, **PARALLEL), (x, y)),
    "embedding mask": lambda: (Network(embedding, table=piece(random(WORDS, WIDTH))), (IDS, y)),
    "positions": lambda: (Network(positions, table=random(ROWS, WIDTH), up=random(WIDTH, WIDTH)), HALVES),
    "chunked loss": lambda: (Network(chunked_loss, **PARALLEL, scale=torch.ones(WIDTH)), (x, y)),
    "largest over a group": lambda: (Network(largest, up=laid(up, 1), down=laid(down, 0)), HALVES, mean_over_data),
    "max instead of sum": lambda: (Network(softmax, **PARALLEL), (x, y)),
    "valid rows": lambda: (Network(valid_rows, **OF_DATA), (*HALVES, HALVES[0][:, 0].abs()), mean_over()),
    "tied tables": lambda: (Network(tied, table=random(WORDS, WIDTH)), (piece(IDS), piece(random(ROWS, WORDS)))),
    "wrong dimension": lambda: (Network(wrong_dimension, up=piece(random(WIDTH, WIDTH), 1)), (x, y)),
    "read too early": lambda: (Network(unfinished, **PARALLEL, scale=torch.ones(WIDTH)), (x, y)),
    "norm of slices": lambda: (Network(row_parallel_right, **PARALLEL), (x, y), clipped),
    "small number": lambda: (Network(row_parallel_right, **PARALLEL), (x, y), small_number),
    "masks": lambda: (Network(dropped, **OF_DATA), HALVES, mean_over_data),
    "old slices": lambda: (Network(data_parallel, **OF_DATA), HALVES, old_shards),
    "wrong group": lambda: (Network(data_parallel, **OF_DATA), HALVES, over_tensor),
    "slices of others": lambda: (Network(row_parallel_right, **PARALLEL), (x, y), of_others),
    "classes": lambda: (Network(classes, **PARALLEL), (x, IDS)),
    "one forgotten": lambda: (Network(data_parallel, **OF_DATA), HALVES, one_forgotten),
    "flat offset": lambda: (Network(data_parallel, **OF_DATA), HALVES, flat_gradients("offset")),
    "flat scale": lambda: (Network(data_parallel, **OF_DATA), HALVES, flat_gradients("scale")),
    "owned states": lambda: (Network(data_parallel, **OF_DATA), HALVES, mean_over()),
    "flat parameter": lambda: (
        Network(flat_parameter, flat=piece(torch.cat([up.flatten(), down.flatten()]))), HALVES
    ),
    "flat slice": lambda: (Network(data_parallel, **OF_DATA), HALVES, flat_update),
    "flat place": lambda: (Network(data_parallel, **OF_DATA), HALVES, flat_gradients("place")),
}

if __name__ == "__main__":
    network, inputs, *change = STEPS[NAME]()
    mspc.capture.step(network, inputs, optimizer=(Owned if NAME == "owned states" else Descent)(network, *change))

"""Writes a plan as Python code for DTensor's `parallelize_module` and `fully_shard`."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from mspc.readers.pytorch.plans.layers_back import WHOLE, LayerBack, PlanBack

DATA, TENSOR = "dp", "tp"
SLICED = '''
class Sliced(ParallelStyle):
    """A module whose parameters are cut along these dimensions and computed with as DTensors; it may be of any class.

    Its first input comes as `takes`, is brought to `needs`, and what it gives is left as `gives`.
    """

    def __init__(self, cut: dict[str, int], takes: Placement, needs: Placement, gives: Placement) -> None:
        self.cut, self.takes, self.needs, self.gives = cut, takes, needs, gives

    def _apply(self, module: nn.Module, ranks: DeviceMesh) -> nn.Module:
        def cut(_: str, part: nn.Module, ranks: DeviceMesh) -> None:
            for name, value in [*part.named_parameters(recurse=False)]:
                place = Shard(self.cut[name]) if name in self.cut else Replicate()
                made = nn.Parameter(distribute_tensor(value, ranks, [place]), value.requires_grad)
                part.register_parameter(name, made)

        def take(_: nn.Module, inputs: tuple[Any, ...], ranks: DeviceMesh) -> tuple[Any, ...]:
            first = DTensor.from_local(inputs[0], ranks, [self.takes], run_check=False)
            return first.redistribute(ranks, [self.needs]), *inputs[1:]

        def give(_: nn.Module, outputs: Any, ranks: DeviceMesh) -> Any:
            return outputs.redistribute(ranks, [self.gives]).to_local()

        return distribute_module(module, ranks, cut, take, give)
'''
"""The style of modules that PyTorch has no style for."""
LOCAL = '''
class Local(ParallelStyle):
    """A module that computes with slices of its parameters as tensors, and gives sums over all processes.

    cut: parameters, each with the dimension that is cut, and of how many weights one behind another it is.
    """

    def __init__(self, cut: dict[str, tuple[int, int]]) -> None:
        self.cut = cut

    def _apply(self, module: nn.Module, ranks: DeviceMesh) -> nn.Module:
        for name, (dim, parts) in self.cut.items():
            value = module.get_parameter(name)
            place = Shard(dim) if parts == 1 else _StridedShard(dim, split_factor=parts)
            made = nn.Parameter(distribute_tensor(value, ranks, [place]), value.requires_grad)
            module.register_parameter(name, made)

        def whole(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            found = DTensor.from_local(value, ranks, [Replicate()], run_check=False)
            return found.to_local(grad_placements=[Partial()])  # the gradient is a sum over processes

        def take(module: nn.Module, inputs: Any, named: Any) -> Any:
            for name in self.cut:
                module.__dict__[name] = module.get_parameter(name).to_local()  # goes before the parameter
            return tuple(map(whole, inputs)), {name: whole(value) for name, value in named.items()}

        def give(module: nn.Module, _: Any, outputs: Any) -> Any:
            for name in self.cut:
                del module.__dict__[name]
            summed = DTensor.from_local(outputs, ranks, [Partial()], run_check=False)
            return summed.redistribute(ranks, [Replicate()]).to_local()

        module.register_forward_pre_hook(take, with_kwargs=True)
        module.register_forward_hook(give, always_call=True)
        return module
'''
"""The style of modules that compute with slices by themselves."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def torch_code(plan: PlanBack, made_of: str, compile_id: str) -> str:
    """The file. made_of: what was compiled, in words."""
    axes = [(axis, name) for axis, name in ((plan.data, DATA), (plan.tensor, TENSOR)) if axis is not None]
    axes.sort(key=lambda pair: -pair[0].stride)
    comma = "," if len(axes) == 1 else ""
    sizes, names = ", ".join(str(axis.size) for axis, _ in axes), ", ".join(f'"{name}"' for _, name in axes)
    layers = styles(plan)
    tied = {layer.module: layer.same_as for layer in plan.layers if layer.same_as}
    used = {word for style in layers.values() for word in re.findall(r"\w+Parallel", style)}
    placements = {word for style in layers.values() for word in re.findall(r"Shard|Replicate", style)}
    is_own = any(layer.cut for layer in plan.layers)
    if is_own:
        used |= {"ParallelStyle"}
        placements |= {"DTensor", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor"}
    is_local = any(layer.parts for layer in plan.layers)
    if is_local:
        used |= {"ParallelStyle"}
        placements |= {"DTensor", "Partial", "Replicate", "Shard", "distribute_tensor"}
    lines = [
        f'"""How {made_of} is sharded over {plan.ranks} ranks, in DTensor\'s words.', "",
        f"Written by `mspc compile --out-torch`, of compile {compile_id}.", "", *_told(plan), '"""', "",
        *(["from typing import Any", ""] if is_own or is_local else []),
        f"from torch import {'Tensor, ' if is_local else ''}nn",
        "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
    ]  # fmt: skip
    if plan.data is not None:
        lines.append("from torch.distributed.fsdp import fully_shard")
    if placements:
        lines.append(f"from torch.distributed.tensor import {', '.join(sorted(placements))}")
    if is_local:
        lines.append("from torch.distributed.tensor.placement_types import _StridedShard")
    if layers:
        lines.append(f"from torch.distributed.tensor.parallel import {', '.join(sorted(used))}, parallelize_module")
    if is_own:
        lines += ["", *SLICED.rstrip().split("\n")]
    if is_local:
        lines += ["", *LOCAL.rstrip().split("\n")]
    lines += ["", "", 'def mesh(device: str = "cuda") -> DeviceMesh:', '    """The ranks and their axes."""']
    lines += [f"    return init_device_mesh(device, ({sizes}{comma}), mesh_dim_names=({names}{comma}))", ""]
    if layers:
        lines += ["", "LAYERS = {", *(f'    "{name}": {style},' for name, style in layers.items()), "}", ""]
    if tied:
        lines += ["SAME = {", *(f'    "{name}": "{first}",' for name, first in tied.items()), "}",
                  '"""Modules whose weight is another one\'s."""', ""]  # fmt: skip
    lines += ["", "def parallelize(module: nn.Module, ranks: DeviceMesh | None = None) -> nn.Module:",
              '    """Shard a module, which every process has with the same weights."""',
              "    ranks = ranks or mesh()"]  # fmt: skip
    if layers:
        lines.append(f'    parallelize_module(module, ranks["{TENSOR}"], LAYERS)')
    if tied:
        lines += ["    for name, first in SAME.items():  # every module was given a parameter of its own",
                  "        module.get_submodule(name).weight = module.get_submodule(first).weight"]  # fmt: skip
    if plan.data is not None:
        again = plan.sharing == "parameters"
        lines.append(f'    fully_shard(module, mesh=ranks["{DATA}"], reshard_after_forward={again})')
    return "\n".join([*lines, "    return module", ""])


def _told(plan: PlanBack) -> list[str]:
    """What a reader has to know."""
    found = ["Between layers are local tensors: a module that views them has to ask for their sizes, or for -1 heads."]
    if plan.tensor is not None:
        found.append("Parameters that no layer cuts stay tensors, beside DTensors: optimizers take `foreach=False`.")
    if plan.data is not None:
        found.append(f"Every process of `{DATA}` takes its own rows; the loss is the mean of theirs.")
        if not plan.sharing:
            found.append("mspc has every rank update all; fully_shard keeps shares, with equal numbers.")
    return found


def styles(plan: PlanBack) -> dict[str, str]:
    """The styles of modules, or of patterns of them where all that a pattern names have one."""
    own = {layer.module: _style(layer) for layer in plan.layers}
    found: dict[str, str] = {}
    for name, style in own.items():
        pattern = _NUMBER.sub("*", name)
        named = [each for each in plan.modules if fnmatchcase(each, pattern)]
        found[pattern if all(own.get(each) == style for each in named) else name] = style
    return found


def _style(layer: LayerBack) -> str:
    said: list[str] = []
    usual = (WHOLE if layer.kind == "Colwise" else layer.last, WHOLE if layer.kind == "Rowwise" else layer.last)
    if layer.parts:
        said_parts = ", ".join(f'"{name}": ({dim}, {count})' for name, dim, count in layer.parts)
        return f"Local({{{said_parts}}})"
    if layer.cut:
        cut = ", ".join(f'"{name}": {dim}' for name, dim in layer.cut)
        needs = WHOLE if layer.kind == "Colwise" else layer.last
        places = [_placement(dim, layer.last) for dim in (layer.takes, needs, layer.gives)]
        return f"Sliced({{{cut}}}, {', '.join(places)})"
    if layer.takes != usual[0]:
        said.append(f"input_layouts={_placement(layer.takes, layer.last)}")
    if layer.gives != usual[1]:
        said.append(f"output_layouts={_placement(layer.gives, layer.last)}")
    return f"{layer.kind}Parallel({', '.join(said)})"


def _placement(dim: int, last: int) -> str:
    if dim == WHOLE:
        return "Replicate()"
    return "Shard(-1)" if dim == last else f"Shard({dim})"

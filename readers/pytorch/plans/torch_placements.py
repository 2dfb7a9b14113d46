"""A plan as DTensor's placements of parameters and inputs, for networks that are no modules of PyTorch.

The module that is placed is the network written in PyTorch, with the same names. DTensor computes what one device
computes for any placements, so that every plan can be written whose parameters have a mesh in common.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.device import source_text
from mspc.readers.pytorch.placed import mesh_with
from mspc.readers.pytorch.plans.torch_code import Axis, all_axes_of, axes_of, data_axis, sharing, states

RENAMED = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}
"""Parameters of cells by the names that PyTorch's modules have for them."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_LAYER = re.compile(r"(.*?\.\d+)\.")
Places = tuple[int | None, ...]
"""By axis of the mesh the dimension that it shards, None for none."""


@dataclass(frozen=True)
class PlacementPlan:
    """A plan. mesh: its sizes. names: of its axes. parameters, inputs: their places. data: the axis that divides the
    rows of the batch, over which `fully_shard` works, or None. groups: modules that it shards. shares_parameters: as
    the plan does."""

    mesh: tuple[int, ...]
    names: tuple[str, ...]
    parameters: Mapping[str, Places]
    inputs: Sequence[Places]
    data: int | None
    groups: Sequence[str]
    shares_parameters: bool


def placement_plan(graph: Graph) -> PlacementPlan:
    """Return the plan of a graph of all ranks. Raise MspcError if its layouts have no mesh in common."""
    trained = [p for p in graph.parameters if p.kind == "parameter"]
    others = {*states(trained)}
    own = [p for p in trained if p.name not in others]
    inputs = [p for p in graph.parameters if p.kind == "input"]
    layouts = [p.layout for p in (*own, *inputs) if isinstance(p.layout, Layout)]
    ranks = max((layout.ranks for layout in layouts), default=1)
    axes = [axis for layout in layouts for axis in all_axes_of(layout)]
    batch = data_axis(graph)
    try:
        mesh = mesh_with([(axis.stride, axis.size) for axis in axes], ranks)
    except ValueError as error:
        raise MspcError(f"--out-torch: the plan has no mesh of DTensor: {error}") from None
    of_mesh = [Axis(math.prod(mesh[n + 1 :]), size) for n, size in enumerate(mesh)]
    data = of_mesh.index(batch) if batch in of_mesh else None
    free = sum(number != data for number in range(len(mesh)))
    numbers = iter(range(free))
    names = tuple("dp" if n == data else "tp" if free == 1 else f"tp{next(numbers)}" for n in range(len(mesh)))
    groups = dict.fromkeys(found[1] for p in own if (found := _LAYER.match(p.name)))
    shares = sharing(own, trained, batch) == "parameters"
    parameters: dict[str, Places] = {}
    for parameter in own:
        owner, dot, name = parameter.name.rpartition(".")
        parameters[owner + dot + RENAMED.get(name, name)] = _places(parameter, of_mesh)
    return PlacementPlan(mesh, names, parameters, [_places(p, of_mesh) for p in inputs], data, [*groups], shares)


def _places(parameter: Parameter, mesh: Sequence[Axis]) -> Places:
    """Return the places of a parameter. Raise MspcError if DTensor orders its slices otherwise."""
    found: list[int | None] = [None] * len(mesh)
    layout = parameter.layout
    for dim, axes in enumerate(layout.dims if isinstance(layout, Layout) else ()):
        assert isinstance(layout, Layout)
        order: list[int] = []
        for own in axes_of(layout, axes):
            order += [n for n, axis in enumerate(mesh) if own.stride <= axis.stride < own.end and axis.size > 1]
        if order != sorted(order):
            raise MspcError(
                f"--out-torch: dimension {dim} of {parameter.name} is sharded over the axes of the mesh in another "
                "order than DTensor shards it"
            )
        for number in order:
            found[number] = dim
    return tuple(found)


def placements_code(plan: PlacementPlan, made_of: str, compile_id: str) -> str:
    """Return the text of the file. made_of: the compiled network, in words."""
    axes = [n for n in range(len(plan.mesh)) if n != plan.data]
    groups = ""
    if plan.data is not None:
        call = f'mesh=ranks["dp"], reshard_after_forward={plan.shares_parameters})'
        groups = f"    for name in GROUPS:\n        fully_shard(module.get_submodule(name), {call}\n"
        groups = (groups if plan.groups else "") + f"    fully_shard(module, {call}\n"
    lines = [
        f'"""How {made_of} is sharded over {math.prod(plan.mesh)} ranks, in DTensor\'s words.', "",
        f"Written by `mspc compile --out-torch`, of compile {compile_id}.", "",
        "The module is this network in PyTorch, with the same names; gamma, beta and embedding_table are weight, bias",
        "and weight. Inputs are those of `distribute`, and results are DTensors.", '"""', "",
        "import re", "from collections.abc import Sequence", "", "from torch import Tensor, nn",
        "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
        *(["from torch.distributed.fsdp import fully_shard"] if plan.data is not None else []),
        "from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor", "",
        f"AXES = {_tuple(plan.names[n] for n in axes)}",
        "PARAMETERS = {", *(f'    "{name}": {text},' for name, text in _by_pattern(plan, axes).items()), "}",
        f"INPUTS = [{', '.join(_text(places, axes) for places in plan.inputs)}]",
        *(["GROUPS = [", *(f'    "{name}",' for name in plan.groups), "]"] if plan.data is not None and plan.groups
          else []),
    ]  # fmt: skip
    text = source_text(
        "readers/pytorch/plans/placements.py.txt", mesh=_tuple(plan.mesh), names=_tuple(plan.names), groups=groups,
        rows="all" if plan.data is None else "its own rows",
        data="" if plan.data is None else ' | {ranks.get_group("dp"): spmd.R}',
    )  # fmt: skip
    return "\n".join(lines) + "\n\n\n" + text


def _by_pattern(plan: PlacementPlan, axes: Sequence[int]) -> dict[str, str]:
    """Return the placements of parameters, or of patterns of them if all that a pattern names have the same."""
    own = {name: _text(places, axes) for name, places in plan.parameters.items()}
    named: dict[str, set[str]] = {}
    for name, text in own.items():
        named.setdefault(_NUMBER.sub("*", name), set()).add(text)
    return {
        pattern if len(named[pattern]) == 1 else name: text
        for name, text in own.items() for pattern in (_NUMBER.sub("*", name),) if "Shard" in text
    }  # fmt: skip


def _text(places: Places, axes: Sequence[int]) -> str:
    return _tuple(["Replicate()" if places[n] is None else f"Shard({places[n]})" for n in axes], True)


def _tuple(values: Iterable[object], is_code: bool = False) -> str:
    texts = [str(value) if is_code or isinstance(value, int) else f'"{value}"' for value in values]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

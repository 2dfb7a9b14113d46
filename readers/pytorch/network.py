"""The network of an exported program as a cell, and the module itself beside it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.mindspore_api.common.initializers import InitialValue, Normal, initial_value
from mspc.mindspore_api.common.parameter import Parameter, StoredValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.readers.pytorch.evaluation import Evaluator, evaluated
from mspc.readers.pytorch.exported_program import ExportedProgram, NodeResult, ProgramInput, ProgramOutput
from mspc.readers.pytorch.kinds.aten_table import check_kinds
from mspc.readers.pytorch.plans.strategies import LayerPlan
from mspc.readers.pytorch.written_values import written_inputs

_DEVIATION = 0.02
"""Standard deviation of the normal numbers for weights that are not in the file."""


class ImportedNetwork(Cell):
    """An exported program of PyTorch as a cell.

    Parameters and persistent buffers have the module's names and are read from the file when a run needs them; missing
    weights are drawn. Two names of one tensor are one parameter.

    program: with numbers for all of its sizes. returns: one of the results, by its path in the return value of
    `forward` (`loss`, `logits`, `0`); None for all: one as it is, several as a tuple. half: the type of kinds under
    autocast. plan: of its layers, or None.

    Raise MspcError if the program has unknown kinds, all of which are named, or it returns nothing of that path.
    """

    is_imported = True
    """The front end evaluates the program of the cell, and reads no `construct`."""

    def __init__(
        self, program: ExportedProgram, returns: str | None = None, half: DType | None = None,
        plan: LayerPlan | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_kinds(program)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "half", half)
        object.__setattr__(self, "program", program)
        names = tuple(each.qualified for each in program.inputs if each.kind == "user")
        object.__setattr__(self, "argument_names", names)
        object.__setattr__(self, "held", self._held_tensors(program))
        object.__setattr__(self, "constants", {})
        object.__setattr__(self, "results", _results(program, returns))

    def _held_tensors(self, program: ExportedProgram) -> dict[str, Tensor]:
        """Return the parameters, buffers and constants by the names of their values in the graph."""
        found: dict[str, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        written = written_inputs(program)
        for each in program.inputs:
            if each.kind not in ("parameter", "buffer", "constant"):
                continue
            name = program.same.get(each.qualified, each.qualified)
            if name not in tensors:
                tensors[name] = self._tensor(program, each, name, each.name in written)
            found[each.name] = tensors[name]
        return found

    def _tensor(self, program: ExportedProgram, each: ProgramInput, name: str, is_written: bool) -> Tensor:
        tensor = Tensor(_values(program, each, name))
        if each.kind == "constant" or not (each.kind == "parameter" or each.persistent or is_written):
            return tensor
        parameter = Parameter(tensor, name=name, requires_grad=each.kind == "parameter" and each.trainable)
        self._insert(name, parameter)
        return parameter

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the tensors that the network is called with."""
        types = [each.type for each in self.program.inputs if each.kind == "user"]
        return tuple(TensorType(each.dtype, each.shape) for each in types if each is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile (once) and run; tensors may be given by the names of `forward`."""
        return super().__call__(*self.in_order(args, kwargs))

    def in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the tensors of a call in the program's order. Raise TypeError for others than it has."""
        names = self.argument_names
        unknown = [name for name in named if name not in names[len(args) :]]
        if unknown:
            raise ApiTypeError(f"{self.program.name} takes no {unknown[0]!r} here; it takes {', '.join(names)}")
        given = (*args, *(named[name] for name in names[len(args) :] if name in named))
        if len(given) != len(names):
            raise ApiTypeError(f"{self.program.name} takes {len(names)} tensors, {', '.join(names)}, not {len(given)}")
        return given

    def construct(self, *inputs: Any) -> Any:
        """Never read: the front end calls `evaluate`."""
        raise ApiRuntimeError(f"{self.program.name} is computed by a compile")

    def evaluate(self, evaluator: Evaluator, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the program's results for these tensors, by the calls that the front end makes of its nodes."""
        given = self.in_order(args, named)
        return evaluated(evaluator, self.program, self.held, given, self.results, self.constants, self.half, self.plan)

    def extend_repr(self) -> str:
        return self.program.name


def _values(program: ExportedProgram, each: ProgramInput, name: str) -> InitialValue:
    if name in program.weights.tensors:
        return StoredValue(program.weights, name)
    assert each.type is not None
    sigma = _DEVIATION if each.type.dtype.is_float else 0.0
    return initial_value(Normal(sigma), each.type.shape, each.type.dtype)


def _results(program: ExportedProgram, returns: str | None) -> tuple[ProgramOutput, ...]:
    users = tuple(output for output in program.outputs if output.kind in ("user", "loss"))
    if returns is None:
        return users
    chosen = tuple(output for output in users if output.target == returns or output.kind == returns)
    if not chosen:
        names = [output.target for output in users]
        notes = [*did_you_mean(returns, names), f"it returns {', '.join(filter(None, names)) or 'one tensor'}"]
        raise ApiValueError(f"{program.name} returns no {returns!r}", notes)
    return chosen


Array = Any


@dataclass(frozen=True)
class ModuleStep:
    """Results of PyTorch. results: those that the network returns, in order, or the loss alone. gradients: of the loss,
    by the names of parameters; empty if nothing is differentiated."""

    results: list[Array]
    gradients: dict[str, Array]


def module_step(
    network: ImportedNetwork, made: Any, arrays: Sequence[Array], weights: Mapping[str, Array], loss: str, trains: bool,
    draws: Sequence[Array] = (),
) -> ModuleStep:
    """Run one forward pass, and backward if it `trains`.

    network: the exported program. made: the result of a function: the module, with the inputs of an example. arrays:
    the tensors that the network is called with, labels last if the loss needs some. weights: of parameters and buffers
    by name, which the module gets. loss: `cross_entropy`, `mse`, or anything else for the result. draws: the masks of
    dropout and the numbers that the program draws, in order.

    Raise MspcError if the module is called with other tensors than the program, or draws otherwise.
    """
    from mspc.readers.pytorch.exporting import without_layer_drop  # late: few programs are compared with their module

    torch, tree = importlib.import_module("torch"), importlib.import_module("torch.utils._pytree")
    parts = cast(Sequence[Any], made if isinstance(made, tuple) else (made,))
    module, inputs, named = (*parts, *((), {})[len(parts) - 1 :])
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    external = loss in ("cross_entropy", "mse")
    given = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays[: len(arrays) - external]]
    leaves, spec = tree.tree_flatten((inputs, dict(named)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(places) != len(given):
        raise MspcError(f"the module takes {len(places)} tensors, and the program was exported with {len(given)}")
    for place, tensor in zip(places, given, strict=True):
        leaves[place] = tensor.to(leaves[place].dtype)
    same = network.program.same
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if same.get(name, name) in weights:
                tensor.copy_(torch.from_numpy(np.array(weights[same.get(name, name)])).to(tensor.dtype))
        for name, part in network.program.parts.items():
            own = module.get_parameter(part.whole).narrow(part.dim, part.begin, part.end - part.begin)
            own.copy_(torch.from_numpy(np.array(weights[name])).to(own.dtype))
    inputs, named = tree.tree_unflatten(leaves, spec)
    with _drawn_numbers(torch, draws), without_layer_drop(torch, network.program.dropped):
        found = [leaf for leaf in tree.tree_flatten(module(*inputs, **named))[0] if isinstance(leaf, torch.Tensor)]
    users = [each for each in network.program.outputs if each.kind in ("user", "loss")]
    tensors = [each for each in users if isinstance(each.value, NodeResult)]
    results = [found[tensors.index(each)] for each in network.results if each in tensors]
    if external:
        results = [_loss(torch, loss, results[0], torch.from_numpy(np.ascontiguousarray(arrays[-1])))]
    gradients: dict[str, Array] = {}
    if trains:
        results[0].backward()
        gradients = {
            same.get(name, name): _array(parameter.grad)
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
        for name, part in network.program.parts.items():
            whole = module.get_parameter(part.whole).grad
            if whole is not None:
                gradients[name] = _array(whole.narrow(part.dim, part.begin, part.end - part.begin))
    return ModuleStep([_array(each) for each in results], gradients)


def _drawn(torch: Any, operator: str, given: Mapping[str, Any], shares: Callable[[Sequence[int]], Any]) -> Any:
    """Return the numbers of an operator of PyTorch. shares: gives numbers from 0 to 1, or a mask of dropout. Raise
    MspcError for an operator whose draws are not known."""
    shape = given["self"].shape if "self" in given else given.get("size", (given.get("n"),))
    plain, low = operator.removesuffix("_"), given.get("low", given.get("from", 0))
    if plain.removesuffix("_like") not in (
        "bernoulli", "rand", "uniform", "randn", "normal", "exponential", "randint", "randperm"
    ):
        raise MspcError(f"the module draws numbers by {operator}, to which those of the program cannot be given")
    found = shares(shape)
    if plain == "bernoulli":
        p = given.get("p", 0.5 if operator.endswith("_") else given["self"])
        return found if found.dtype == torch.bool else found < p
    if plain in ("randn", "randn_like", "normal"):  # as `ops.standard_normal` makes them
        turned = (torch.log1p(-found) * -2.0).sqrt() * (shares(shape) * (2.0 * math.pi)).cos()
        return turned * given.get("std", 1.0) + given.get("mean", 0.0)
    if plain == "exponential":
        return torch.log1p(-found) / -given.get("lambd", 1.0)
    if plain == "randperm":
        return found.argsort(stable=True)
    size = given.get("high", given.get("to", 1)) - low
    return (found * size).long().clamp(max=size - 1) + low if "high" in given else found * size + low


@contextmanager
def _drawn_numbers(torch: Any, arrays: Sequence[Array]) -> Generator[None]:
    """Let operators of PyTorch draw these numbers, one call after the other. Raise MspcError if they do not fit."""
    left, modes = list(arrays), cast(Any, importlib.import_module("torch.utils._python_dispatch"))

    def shares(shape: Sequence[int]) -> Any:
        if not left or [n for n in left[0].shape if n > 1] != [n for n in shape if n > 1]:
            raise MspcError(f"the module draws numbers of shape {tuple(shape)}, which the program does not draw")
        return torch.from_numpy(left.pop(0)).reshape(tuple(shape))

    class Drawn(modes.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(zip([each.name for each in function._schema.arguments], args, strict=False)) | (kwargs or {})
            is_attention = "_attention" in function._schema.name and not given.get("dropout_p")
            if torch.Tag.nondeterministic_seeded not in function.tags or is_attention:
                return function(*args, **(kwargs or {}))
            name = function._schema.name.partition("::")[2]
            found = _drawn(torch, name, given, shares)
            if name.endswith("_"):
                return given["self"].copy_(found)
            return found.to(given.get("dtype") or (given["self"] if "self" in given else found).dtype)

    with Drawn():
        yield
    if left:
        raise MspcError(f"the program draws {len(arrays)} times, and the module {len(arrays) - len(left)} times")


def _loss(torch: Any, name: str, result: Any, labels: Any) -> Any:
    """Return a loss of a result and labels, as `training.LOSSES` has it."""
    functional = torch.nn.functional
    if name == "mse":
        return functional.mse_loss(result, labels)
    if result.ndim == 3:
        result, labels = result.reshape(-1, result.shape[-1]), labels.reshape(-1)
    return functional.cross_entropy(result, labels)


def _array(tensor: Any) -> Array:
    """Return the tensor as NumPy has it; of half-precision numbers those in Float32."""
    found = tensor.detach()
    return (found.float() if str(found.dtype) in ("torch.bfloat16", "torch.float16") else found).numpy()

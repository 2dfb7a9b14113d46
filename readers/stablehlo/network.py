"""The network of a StableHLO module as a cell: donated arguments are parameters that a step updates."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.types import TensorType
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.initializers import Normal, initial_value
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError
from mspc.mindspore_api.nn.cell import Cell
from mspc.ops.control.structural import is_constraint
from mspc.ops.op import Op
from mspc.readers.stablehlo.evaluation import RegionWalk, run_function
from mspc.readers.stablehlo.kinds.all_kinds import check_kinds, name_of
from mspc.readers.stablehlo.module import HloFunction, HloModule, OtherType
from mspc.readers.stablehlo.shardings import layout_of, sharding_in

_DEVIATION = 0.02
"""Standard deviation of the normal numbers that parameters begin with: a text has no values."""
_KEY = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|<flat index (\d+)>|(\w+))\]|\.")


@dataclass(frozen=True)
class StepArgument:
    """An argument of the main function. name: unique, `params.layers.a`. target: the number of the result that is its
    new value; -1 for an argument that is not donated."""

    name: str
    type: TensorType
    target: int
    sharding: Any


class StableHloNetwork(Cell):
    """A module of StableHLO as a cell.

    ranks: on which it is compiled; shardings in the text are for as many, or it has none. uses_shardings: whether they
    are read. like: the network of the step of which the module is one device's program: its arguments have the same
    names. is_function: all results are returned, and nothing is updated.

    Raise MspcError if the module has unknown kinds, all of which are named, is made for another number of devices, or
    has not as many arguments as the step.
    """

    is_imported = True
    """The front end evaluates the program of the cell, and reads no `construct`."""
    plan = None

    def __init__(
        self, module: HloModule, ranks: int = 1, uses_shardings: bool = True, like: StableHloNetwork | None = None,
        is_function: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        check_kinds(module)
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "ranks", ranks if uses_shardings else 1)
        object.__setattr__(self, "is_function", is_function)
        arguments = step_arguments(module)
        if like is not None:
            arguments = like.named_alike(arguments, module)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "argument_names", tuple(each.name for each in arguments if each.target < 0))
        held: dict[str, Parameter] = {}
        averages = moving_averages(module.main)
        for at, each in enumerate(arguments):
            if each.target >= 0:
                sigma = _DEVIATION if each.type.dtype.is_float and at not in averages else 0.0
                value = Tensor(initial_value(Normal(sigma), each.type.shape, each.type.dtype))
                held[each.name] = Parameter(value, name=each.name, requires_grad=False)
                self._insert(each.name, held[each.name])
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "constants", {})

    def named_alike(self, arguments: Sequence[StepArgument], module: HloModule) -> list[StepArgument]:
        """Return arguments of another module with the names of this one's. Raise MspcError if they are not as many."""
        if len(arguments) != len(self.arguments):
            found, wanted = (f"{each.file} has {n}" for each, n in (
                (module, len(arguments)), (self.module, len(self.arguments))))  # fmt: skip
            raise MspcError(f"{found} arguments, and {wanted}: it is of another step")
        return [replace(own, type=each.type) for own, each in zip(self.arguments, arguments, strict=True)]

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the tensors that the network is called with."""
        return tuple(each.type for each in self.arguments if each.target < 0)

    def input_layouts(self) -> tuple[NamedLayout | None, ...]:
        """The layouts of these, None for a tensor that is whole on every rank."""
        return tuple(
            None if each.sharding is None else layout_of(self.module, each.sharding, each.type.rank)
            for each in self.arguments if each.target < 0
        )  # fmt: skip

    @property
    def has_shardings(self) -> bool:
        """Whether the text says how anything is sharded."""
        if any(each.sharding is not None for each in self.arguments):
            return True
        operations = self.module.main.body.all_operations()
        names = ("sdy.sharding_constraint", "sdy.manual_computation")
        return any(each.name in names or "mhlo.sharding" in each.attributes for each in operations)

    def construct(self, *inputs: Any) -> Any:
        """Never read: the front end calls `evaluate`."""
        raise ApiRuntimeError(f"{self.module.file} is computed by a compile")

    def evaluate(self, evaluator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the results for these tensors that are no new values of parameters, and update the parameters."""
        if named or len(args) != len(self.argument_names):
            names = ", ".join(self.argument_names)
            raise ApiTypeError(f"{self.module.file} takes {len(self.argument_names)} tensors, {names}, not {len(args)}")
        tensors = iter(args)
        walk = RegionWalk(evaluator, self.module, self.ranks, self.constants)
        given: list[Any] = []
        for each in self.arguments:
            value = next(tensors) if each.target < 0 else evaluator.held(self.held[each.name], each.name)
            given.append(walk.in_layout(value, each.sharding))
        results = run_function(walk, self.module.main, given)
        targets = {each.target: each for each in self.arguments if each.target >= 0}
        found: list[Any] = []
        main = self.module.main
        if not self.is_function:
            mark_updates(evaluator.nodes, results, targets)
        for at, value in enumerate(results):
            attributes = main.result_attributes[at] if at < len(main.result_attributes) else {}
            if at in targets and not self.is_function:
                evaluator.call(ops.assign, [self.held[targets[at].name], value])
            else:
                found.append(walk.in_layout(value, sharding_in(attributes)))
        if not found:
            found = [results[0]]
        return found[0] if len(found) == 1 else tuple(found)

    def extend_repr(self) -> str:
        return self.module.file


def mark_updates(nodes: Sequence[Node], results: Sequence[Any], targets: Collection[int]) -> None:
    """Give operators that compute new values of parameters element by element, and nothing else, the phase `update`. A
    sum of gradients is none, as its parts may be added over ranks together.

    nodes: of a step. results: its values. targets: the numbers of those that are new values of parameters.
    """
    of_states: set[Value] = set()
    for node in nodes:
        reads = any(value in of_states or getattr(value, "kind", "") == "parameter" for value in node.inputs)
        if reads and (_is_elementwise(node) or is_constraint(node)):
            of_states.add(node)
    used = {*results}
    read = {value for at, value in enumerate(results) if at not in targets}
    for node in reversed(nodes):
        is_sum = node.op.additive and node not in of_states
        if node in used and node not in read and _is_elementwise(node) and not is_sum and not is_constraint(node):
            node.phase = "update"
        elif node in used:
            read.update(node.inputs)
        used.update(node.inputs if node in used else ())


def _is_elementwise(node: Node) -> bool:
    """Return whether an operator computes every element of its result from those of its operands at the same place."""
    op = node.op
    has_rule = isinstance(op, Op) and type(op).rule is not Op.rule and not (node.regions or op.mutates)
    return has_rule and isinstance(node.type, TensorType) and op.parsed_rule(*operand_types(node)).is_elementwise


def step_arguments(module: HloModule) -> list[StepArgument]:
    """Return the arguments of the main function. Raise MspcError if one is no tensor."""
    main = module.main
    found: list[StepArgument] = []
    taken: set[str] = set()
    targets = donated_targets(main)
    for at, type in enumerate(main.body.types):
        attributes = main.argument_attributes[at]
        if isinstance(type, OtherType):
            raise MspcError(
                f"{module.file}: argument {at} is {type}, no tensor of static shape with an element type of mspc",
                module.location(main.place), ["export it with sizes instead of symbols"],
            )  # fmt: skip
        name = base = argument_name(main, at, attributes)
        number = 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        found.append(StepArgument(name, type, targets.get(at, -1), sharding_in(attributes)))
    return found


def argument_name(main: HloFunction, at: int, attributes: Mapping[str, Any]) -> str:
    """Return the name of an argument: `params.layers.a` of `params['layers']['a']`, else that of the value."""
    text = attributes.get("jax.arg_info") or (main.origins[at].name if main.origins[at] is not None else "")
    parts = _KEY.sub(lambda m: "." + next(filter(None, m.groups()), ""), str(text)).split(".")
    name = ".".join(filter(None, (re.sub(r"\W+", "_", part).strip("_") for part in parts)))
    own = main.body.arguments[at][1:]
    return name if name[:1].isalpha() else own if own.isidentifier() else f"arg{at}"


def moving_averages(main: HloFunction) -> frozenset[int]:
    """Return the arguments that a step multiplies by constant numbers and reads nowhere else, as optimizers do with
    averages of gradients: they begin at zero, and the square root of one exists."""
    made = {name: each for each in main.body.operations for name in each.results}
    readers: dict[str, list[Any]] = {}
    for operation in main.body.operations:
        for name in operation.operands:
            readers.setdefault(name, []).append(operation)

    def is_number(name: str) -> bool:
        found = made.get(name)
        if found is not None and name_of(found) in ("broadcast_in_dim", "convert"):
            return is_number(found.operands[0])
        return found is not None and name_of(found) == "constant"

    def decays(argument: str) -> bool:
        found = readers.get(argument, [])
        return bool(found) and all(
            name_of(each) == "multiply" and any(is_number(name) for name in each.operands if name != argument)
            for each in found
        )  # fmt: skip

    return frozenset(at for at, name in enumerate(main.body.arguments) if decays(name))


def donated_targets(main: HloFunction) -> dict[int, int]:
    """Return the result that takes the place of each donated argument.

    A text names the result (`tf.aliasing_output`), or leaves it to the compiler (`jax.buffer_donor`): then it is the
    first one of the same type whose path ends as the argument's, or the first one of its type.
    """
    found: dict[int, int] = {}
    waiting: list[int] = []
    for at, attributes in enumerate(main.argument_attributes):
        target = attributes.get("tf.aliasing_output")
        if isinstance(target, int) and 0 <= target < len(main.result_types):
            found[at] = target
        elif attributes.get("jax.buffer_donor"):
            waiting.append(at)
    free = [at for at in range(len(main.result_types)) if at not in found.values()]
    for exact in (True, False):
        for at in list(waiting):
            own = _keys(main.origins[at].name if main.origins[at] is not None else "")
            for target in free:
                info = main.result_attributes[target].get("jax.result_info", "") if main.result_attributes else ""
                if main.result_types[target] == main.body.types[at] and (not exact or (own and own == _keys(info))):
                    found[at] = target
                    free.remove(target)
                    waiting.remove(at)
                    break
    return found


def _keys(path: str) -> str:
    """Return the keys of a path without its first part, the argument or the place among the results."""
    keys = re.findall(r"\[[^\]]*\]|\.\w+", path)
    return "".join(keys[1:] if path.startswith("result") else keys)

"""A cell is compiled here without running it, under the names that MindSpore's own programs and tests use."""

from __future__ import annotations

from typing import Any

from mspc.api import call_handler
from mspc.api.errors import ApiKeyError, ApiTypeError


class Phase(str):
    """The name of one compile. facts: what is known of it."""

    def __new__(cls, name: str, facts: Any) -> Phase:
        made = super().__new__(cls, name)
        made.facts = facts
        return made

    facts: Any


class CellGraphExecutor:
    """Compiles cells: a network is accepted or refused, nothing is run, and only the files are written in which the
    script wants its strategies.

    Operators are named by their cells and their place among those of their kind: `Default/network-Net/MatMul-op0`.
    """

    @property
    def _graph_executor(self) -> CellGraphExecutor:
        """What answers for a phase; MindSpore keeps it apart."""
        return self

    def compile(self, obj: Any, *args: Any, phase: str = "predict", **options: Any) -> tuple[str, bool]:
        """Compile `obj(*args)` for all ranks in the current context, and leave `obj.parameter_layout_dict`.

        Args:
            obj: a Cell or a function. args: its arguments as one rank hands them in. phase: the first part of the name
                that is returned. options: what MindSpore takes beside (`do_convert`, `jit_config_dict`) changes nothing
                here.

        Returns:
            The full name of the phase, which holds what is known of it, and True.

        Raises:
            TypeError: `phase` is no string or `obj` cannot be called. MspcError: the network is refused, with the kind
                of exception that running it would raise.
        """
        if not isinstance(phase, str):
            raise ApiTypeError(f"compile: phase must be a string, not {type(phase).__name__}")
        if not callable(obj):
            raise ApiTypeError(f"compile takes a Cell or a function, not {type(obj).__name__}")
        unknown = sorted(options.keys() - {"do_convert", "jit_config_dict"})
        if unknown:
            raise ApiTypeError(f"compile has no argument {unknown[0]!r}")
        facts = call_handler.backend().compile_in_memory(obj, args)
        if hasattr(obj, "__dict__"):  # not through its class: what asks for gradients is frozen
            vars(obj).update(parameter_layout_dict=facts.parameter_layouts, strategies_by_operator=facts.strategies)
        return Phase(f"{phase}.{facts.compile_id}", facts), True

    def get_strategy(self, phase: str) -> dict[str, list[list[int]]]:
        """For every operator that was sharded, the number of slices of every dimension of every tensor.

        Raises:
            KeyError: it is no name that `compile` returned.
        """
        return _facts(phase).strategies

    def get_parallel_graph_info(self, phase: str) -> dict[str, dict[str, Any]]:
        """One rank's operators (`MatMul-0`) with their inputs and fields, before any are fused; mspc makes one graph,
        `@graph_0`.

        Raises:
            KeyError: it is no name that `compile` returned.
        """
        return {"@graph_0": _facts(phase).operators}

    def _get_shard_strategy(self, obj: Any) -> dict[str, list[list[int]]]:
        """The strategies of the last compile of a cell; none before."""
        return dict(getattr(obj, "strategies_by_operator", {}))

    def _get_num_parallel_ops(self, obj: Any) -> int:
        """How many operators have a strategy since the last compile of a cell."""
        return len(self._get_shard_strategy(obj))


def _facts(phase: Any) -> Any:
    if not isinstance(phase, Phase):
        raise ApiKeyError(f"{phase!r} is no phase of a compile", notes=["give what compile() returned first"])
    return phase.facts

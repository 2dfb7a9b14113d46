"""DatasetHelper and data_sink: steps over a data set for training loops in scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

__all__ = ["DatasetHelper", "connect_network_with_dataset", "data_sink"]


class DatasetHelper:
    """Iterates over a data set, a tuple of Tensors per step. `for inputs in helper: network(*inputs)` takes the same
    steps with sinking, for which MindSpore's network fetches its own data, as without.

    Args:
        dataset: of mindspore.dataset. dataset_sink_mode, epoch_num: change nothing, because every step gets its data as
            arguments.
        sink_size: number of steps of a pass; -1 for all.
    """

    def __init__(self, dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1, epoch_num: int = 1) -> None:
        if not hasattr(dataset, "create_tuple_iterator"):
            raise ApiTypeError(f"DatasetHelper: dataset must be a data set, not {type(dataset).__name__}")
        if isinstance(sink_size, bool) or not isinstance(sink_size, int) or not (sink_size == -1 or sink_size > 0):
            raise ApiValueError(f"DatasetHelper: sink_size must be -1 or above 0, not {sink_size!r}")
        self.dataset, self._sink_size = dataset, sink_size
        self._rows: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._sink_size == -1:
            yield from self.dataset.create_tuple_iterator()
            return
        for _ in range(self._sink_size):
            yield self._next()

    def _next(self) -> Any:
        for _ in range(2):
            if self._rows is None:
                self._rows = iter(self.dataset.create_tuple_iterator())
            for row in self._rows:
                return row
            self._rows = None
        raise ApiValueError("DatasetHelper: the data set has no rows")

    def sink_size(self) -> int:
        """Return the number of steps of one pass."""
        return self.dataset.get_dataset_size() if self._sink_size == -1 else self._sink_size

    def types_shapes(self) -> tuple[list[Any], list[Any]]:
        """Return (element types, shapes) of a step's tensors."""
        return self.dataset.output_types(), self.dataset.output_shapes()

    def stop_send(self) -> None:
        """Do nothing: no data are sent in advance."""

    def continue_send(self) -> None:
        """Do nothing: no data are sent in advance."""

    def release(self) -> None:
        """Stop reading the data set; another pass begins anew."""
        self._rows = None


def connect_network_with_dataset(network: Cell, dataset_helper: DatasetHelper) -> Cell:
    """Return the network, which is called with the helper's rows, and warn that nothing changes. Raise TypeError if
    `dataset_helper` is none."""
    if not isinstance(dataset_helper, DatasetHelper):
        raise ApiTypeError(f"connect_network_with_dataset: takes a DatasetHelper, not {type(dataset_helper).__name__}")
    say_once(
        "connect_network_with_dataset",
        f"{place_of_caller()}connect_network_with_dataset() changes nothing here: the network is called with the data "
        "that the DatasetHelper gives",
    )
    return network


def data_sink(
    fn: Callable[..., Any], dataset: Any, sink_size: int = 1, jit_config: Any = None, input_signature: Any = None
) -> Callable[[], Any]:
    """Return a function without arguments that calls `fn` with the next `sink_size` rows of the data set, from the
    first again after the last, and returns its last result. jit_config and input_signature are those of `jit`, which
    may decorate `fn`. Raise TypeError if dataset is no data set; ValueError if sink_size is not above 0."""
    helper = DatasetHelper(dataset, True, sink_size)
    if sink_size < 1:
        raise ApiValueError(f"data_sink: sink_size must be above 0, not {sink_size!r}")

    def sunk() -> Any:
        result = None
        for row in helper:
            result = fn(*row)
        return result

    return sunk

"""These passes over a data set train a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import Any, Protocol, runtime_checkable

from mspc.api import call_handler
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.train.batches import as_row
from mspc.api.train.callback_base import CallbackManager, RunContext
from mspc.api.train.progress import ProgressBar

__all__: tuple[str, ...] = ()


@runtime_checkable
class CountedRows(Protocol):
    """Rows of a data set that count themselves, as mspc's own do.

    epoch, row: how many passes were made, and how many rows of the present one were read. glance: one row is looked at,
    since only its types are wanted.
    """

    epoch: int
    row: int

    def glance(self) -> None: ...


class Training:
    """The epochs of one run.

    Args:
        length: steps of an epoch. goes_on: an epoch begins where the last one has ended in the data set, which is
            read over and over, and does not end with it.
        together: callbacks are told of so many steps at once, as of one.
        columns: how many columns the rows must have, 0 for any number.
    """

    def __init__(
        self, network: Cell, dataset: Any, run: RunContext, length: int, goes_on: bool, together: int, columns: int
    ) -> None:
        self._network = network
        self._dataset = dataset
        self._run = run
        self._length = length
        self._together = together
        self._columns = columns
        self._reading: Any = None
        self._done = 0
        self._endless = chain.from_iterable(self._pass() for _ in count()) if goes_on else None

    def begun(self, done: int) -> None:
        """The next epoch has `done` steps behind it: an earlier run has made them."""
        self._done = done

    @property
    def position(self) -> int | None:
        """How many rows of the data set were read since its beginning; None where nobody counts."""
        if not isinstance(self._reading, CountedRows):
            return None
        return self._reading.epoch * self._dataset.get_dataset_size() + self._reading.row

    def _pass(self) -> Iterator[Any]:
        """The rows of one pass over the data set. Raises ValueError for one that does not fit the network."""
        rows = self._dataset.create_tuple_iterator(num_epochs=1)
        if call_handler.shows_types_only() and isinstance(rows, CountedRows):
            rows.glance()
        self._reading = rows
        for given in rows:
            yield _checked_row(given, self._columns)

    def epoch(self, number: int, listeners: CallbackManager, bar: ProgressBar) -> None:
        """Train for one epoch."""
        param = self._run.original_args()
        param.cur_epoch_num = number
        self._network.set_train(True)
        bar.begin(f"epoch {number}/{param.epoch_num}", self._length)
        listeners.tell("on_train_epoch_begin")
        done, self._done = self._done, 0
        rows = self._pass() if self._endless is None else islice(self._endless, self._length - done)
        param.dataset_position = self.position
        for row in rows:
            param.cur_step_num += self._together
            param.train_dataset_element = row
            listeners.tell("on_train_step_begin")
            outputs = self._network(*row)
            taken = 1
            for more in islice(rows, self._together - 1):
                param.train_dataset_element = more
                outputs = self._network(*more)
                taken += 1
                bar.show(done + taken)
            param.cur_step_num -= self._together - taken
            param.net_outputs = outputs
            param.dataset_position = self.position
            done += taken
            listeners.tell("on_train_step_end")
            bar.show(done)
            if self._run.get_stop_requested():
                return


def first_row(dataset: Any, columns: int) -> Sequence[Any]:
    """The first row, which must have so many columns, 0 for any number. Raises ValueError for no row."""
    shown = getattr(dataset, "peek", None)
    given = next(iter(dataset.create_tuple_iterator()), None) if shown is None else shown()
    if given is None:
        raise ApiValueError(
            "Model.infer_train_layout: the data set has no batch", ["check batch size and drop_remainder"]
        )
    return _checked_row(given, columns)


def _checked_row(given: Any, columns: int) -> Sequence[Any]:
    """A row as the network is called with it. Raises ValueError for another number of columns."""
    row = as_row(given)
    if columns and len(row) != columns:
        raise ApiValueError(
            f"Model.train: a row of the data set has {len(row)} columns; with loss_fn it is (data, label)",
            ["choose columns of the data set, or let the network compute its loss and leave loss_fn out"],
        )
    return row

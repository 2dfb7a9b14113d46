"""An evaluation is a pass over a data set that feeds metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.api import call_handler
from mspc.api.nn.cell import Cell
from mspc.api.train.batches import as_row
from mspc.api.train.callback_base import CallbackManager, RunContext
from mspc.api.train.metrics.error import Loss
from mspc.api.train.metrics.metric import Metric, OfPairs, plain
from mspc.api.train.progress import ProgressBar
from mspc.api.train.rank_agreement import share_a_run

__all__: tuple[str, ...] = ()


class Evaluation:
    """Metrics of one network.

    Args:
        network: what is called with the rows of a data set. metrics: by name.
        indexes: where the loss, the output and the label are among its outputs; None where it says nothing of that:
            then metrics take what `inputs_of` says.
    """

    def __init__(self, network: Cell, metrics: Mapping[str, Metric], indexes: Sequence[int] | None) -> None:
        self.network = network
        self._metrics = metrics
        self._indexes = indexes
        self._loss = Loss()

    def run(self, dataset: Any, run: RunContext, listeners: CallbackManager, bar: ProgressBar) -> None:
        """Evaluate; afterwards the run knows `metrics`, and `eval_results`, which hold the mean loss as "eval_loss"
        beside them.

        Where several ranks share the run, metrics see what all of them have computed, so they are equal on all.
        """
        param = run.original_args()
        self.network.set_train(False)
        for metric in (*self._metrics.values(), self._loss):
            metric.clear()
        bar.begin("eval", param.batch_num)
        listeners.tell("on_eval_begin")
        listeners.tell("on_eval_epoch_begin")
        together = share_a_run(self.network)
        has_loss = False
        rows = iter(dataset.create_tuple_iterator(num_epochs=1))
        while True:
            given = next(rows, None)
            row = None if given is None else as_row(given)
            if row is None and not together:
                break
            if row is not None:
                param.cur_step_num += 1
                param.eval_dataset_element = row
                listeners.tell("on_eval_step_begin")
            if together:
                outputs = call_handler.current().call_on_all_ranks(self.network, row)
            else:
                outputs = self.network(*(row or ()))
            if outputs is None:
                break
            param.net_outputs = outputs
            has_loss = self._feed(outputs)
            if row is not None:
                listeners.tell("on_eval_step_end")
            bar.show(param.cur_step_num)
            if run.get_stop_requested():
                break
        listeners.tell("on_eval_epoch_end")
        param.metrics = {name: plain(metric.eval()) for name, metric in self._metrics.items()}
        param.eval_results = dict(param.metrics, **({"eval_loss": self._loss.eval()} if has_loss else {}))
        listeners.tell("on_eval_end")

    def _feed(self, outputs: Any) -> bool:
        """Hand the outputs of a batch to the metrics; returns whether a loss is among them."""
        values = outputs if isinstance(outputs, tuple | list) else (outputs,)
        for metric in self._metrics.values():
            metric.update(*inputs_of(metric, values, self._indexes))
        if self._indexes is None and len(values) != 3:
            return False
        self._loss.update(*inputs_of(self._loss, values, self._indexes))
        return True


def inputs_of(metric: Metric, values: Sequence[Any], indexes: Sequence[int] | None) -> Sequence[Any]:
    """The outputs of an evaluation network that go to a metric: of (loss, output, label), which `indexes` finds among
    them, Loss gets the first and others the rest.

    Without indexes a metric gets all and may choose by `set_indexes`; where it does not, and there are three, mspc's
    own take them for (loss, output, label).
    """
    if indexes is None and (metric.indexes or len(values) != 3 or not isinstance(metric, Loss | OfPairs)):
        return values
    loss, *pair = (values[i] for i in (indexes or (0, 1, 2)))
    return (loss,) if isinstance(metric, Loss) else pair

"""`Model`: training and evaluation of a network on data sets."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.amp import build_train_network, check_boost, resolved
from mspc.mindspore_api.common.api import CellGraphExecutor
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import PYNATIVE_MODE, get_auto_parallel_context, get_context, share_a_run
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.wrap import GradAccumulationCell, TrainOneStepCell, WithEvalCell, WithLossCell
from mspc.mindspore_api.parallel.auto_parallel import AutoParallel
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.mindspore_api.settings import SHARDED
from mspc.mindspore_api.train.callback import (
    OLDER,
    Callback,
    CallbackManager,
    CallbackParam,
    RunContext,
    TimeMonitor,
    callbacks_of,
)
from mspc.mindspore_api.train.loss_scale_manager import check_manager
from mspc.mindspore_api.train.metrics import Loss, Metric, OfPairs, get_metrics, plain

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class ModelOptions(TypedDict, total=False):
        """Further keywords of Model, for type checkers."""

        loss_scale_manager: Any
        keep_batchnorm_fp32: bool
        boost_config_dict: Any
        acc_level: str


__all__ = ["Model"]

COUNTERS = ("initializers", "shuffles", "dropouts", "draws")
"""Counters of a session that determine seeds."""
SEEDS = ("seed", "dataset_seed")
_WORDS = 624
"""Words of the state of a Mersenne twister."""


def state_of(param: Any) -> dict[str, Any]:
    """Return the state of a run, equal on all ranks, from the facts for callbacks at the end of a step."""
    session, found = state.current(), call_handler.installed()
    batches = int(param.batch_num)
    counted = getattr(found, "steps", dict)()
    return {
        "epoch": int(param.cur_epoch_num),
        "step": (int(param.cur_step_num) - 1) % batches + 1,
        "batches": batches,
        "total_step": int(param.cur_step_num),
        "data": param.get("dataset_position"),
        "graph_steps": counted,
        "counters": {name: getattr(session, name) for name in COUNTERS},
        "seeds": {name: getattr(session, name) for name in SEEDS},
    }


def state_of_rank() -> dict[str, Any]:
    """Return the state of this rank alone: NumPy's and Python's generators."""
    name, keys, place, has_gauss, gauss = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    version, numbers, next_gauss = random.getstate()
    found: dict[str, Any] = {"python": [version, np.array(numbers, ">u4").tobytes().hex(), next_gauss]}
    if name == "MT19937":
        found["numpy"] = [np.array(keys, ">u4").tobytes().hex(), int(place), int(has_gauss), float(gauss)]
    return found


def restore(saved: dict[str, Any], of_rank: dict[str, Any]) -> None:
    """Restore seeds, counters and generators. Raise ValueError, TypeError or KeyError if it is no such state."""
    session = state.current()
    for name in COUNTERS:
        setattr(session, name, _integer(saved["counters"][name]))
    for name in SEEDS:
        value = saved["seeds"][name]
        setattr(session, name, None if value is None else _integer(value))
    going_on = getattr(call_handler.current(), "resume_steps", None)
    if going_on is not None:
        going_on({str(key): _integer(value) for key, value in saved["graph_steps"].items()})
    if "numpy" in of_rank:
        keys, place, has_gauss, gauss = of_rank["numpy"]
        if not 0 <= _integer(place) <= _WORDS:  # NumPy would read beyond the words
            raise ValueError(f"place {place} of {_WORDS} random numbers")
        np.random.set_state(("MT19937", _words(keys), place, int(bool(has_gauss)), float(gauss)))
    if "python" in of_rank:
        version, numbers, next_gauss = of_rank["python"]
        next_gauss = None if next_gauss is None else float(next_gauss)
        random.setstate((version, tuple(map(int, _words(numbers))), next_gauss))


def _words(text: str) -> Any:
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no integer")
    return value


def as_row(given: Any) -> Sequence[Any]:
    """Return the columns of a step; a data set of one column may yield its tensor alone, as in MindSpore."""
    return (given,) if isinstance(given, Tensor) else given


@runtime_checkable
class CountedRows(Protocol):
    """Rows of a data set that count themselves, as mspc's own do.

    epoch, row: number of passes made, and number of rows read in the current one. glance: request only types of rows.
    """

    epoch: int
    row: int

    def glance(self) -> None: ...


class Training:
    """Epochs of one run.

    Args:
        length: steps of an epoch. goes_on: an epoch continues at the position in the data set at which the last one
            ended; the data set is read repeatedly, independent of epochs.
        together: number of steps reported to callbacks at once, as one step.
        columns: required number of columns of the rows, 0 for any number.
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
        """Begin the next epoch after `done` steps of it, made by an earlier run."""
        self._done = done

    @property
    def position(self) -> int | None:
        """Number of rows of the data set read since its beginning, or None if the rows are not counted."""
        if not isinstance(self._reading, CountedRows):
            return None
        return self._reading.epoch * self._dataset.get_dataset_size() + self._reading.row

    def _pass(self) -> Iterator[Any]:
        """Yield the rows of one pass over the data set. Raise ValueError for one that does not fit the network."""
        rows = self._dataset.create_tuple_iterator(num_epochs=1)
        if call_handler.shows_types_only() and isinstance(rows, CountedRows):
            rows.glance()
        self._reading = rows
        for given in rows:
            yield _checked_row(given, self._columns)

    def epoch(self, number: int, listeners: CallbackManager) -> None:
        """Train for one epoch."""
        param = self._run.original_args()
        param.cur_epoch_num = number
        self._network.set_train(True)
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
            param.cur_step_num -= self._together - taken
            param.net_outputs = outputs
            param.dataset_position = self.position
            done += taken
            listeners.tell("on_train_step_end")
            if self._run.get_stop_requested():
                return


def first_row(dataset: Any, columns: int) -> Sequence[Any]:
    """Return the first row, which must have `columns` columns, 0 for any number. Raise ValueError for an empty data
    set, or another number of columns."""
    shown = getattr(dataset, "peek", None)
    given = next(iter(dataset.create_tuple_iterator()), None) if shown is None else shown()
    if given is None:
        raise ApiValueError(
            "Model.infer_train_layout: the data set has no batch", ["check batch size and drop_remainder"]
        )
    return _checked_row(given, columns)


def _checked_row(given: Any, columns: int) -> Sequence[Any]:
    """Return a row as arguments of the network. Raise ValueError for another number of columns."""
    row = as_row(given)
    if columns and len(row) != columns:
        raise ApiValueError(
            f"Model.train: a row of the data set has {len(row)} columns; with loss_fn it is (data, label)",
            ["choose columns of the data set, or let the network compute its loss and leave loss_fn out"],
        )
    return row


class Evaluation:
    """Metrics of one network.

    Args:
        network: called with the rows of a data set. metrics: by name.
        indexes: positions of the loss, the output and the label among its outputs; None if unknown: then metrics take
            the values of `inputs_of`.
    """

    def __init__(self, network: Cell, metrics: Mapping[str, Metric], indexes: Sequence[int] | None) -> None:
        self.network = network
        self._metrics = metrics
        self._indexes = indexes
        self._loss = Loss()

    def run(self, dataset: Any, run: RunContext, listeners: CallbackManager) -> None:
        """Evaluate, and set `metrics` of the run, and `eval_results`, which also has the mean loss as "eval_loss".

        If several ranks share the run, metrics get the results of all of them, so they are equal on all ranks.
        """
        param = run.original_args()
        self.network.set_train(False)
        for metric in (*self._metrics.values(), self._loss):
            metric.clear()
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
            if run.get_stop_requested():
                break
        listeners.tell("on_eval_epoch_end")
        param.metrics = {name: plain(metric.eval()) for name, metric in self._metrics.items()}
        param.eval_results = dict(param.metrics, **({"eval_loss": self._loss.eval()} if has_loss else {}))
        listeners.tell("on_eval_end")

    def _feed(self, outputs: Any) -> bool:
        """Update the metrics with the outputs of a batch; return whether a loss is among the outputs."""
        values = outputs if isinstance(outputs, tuple | list) else (outputs,)
        for metric in self._metrics.values():
            metric.update(*inputs_of(metric, values, self._indexes))
        if self._indexes is None and len(values) != 3:
            return False
        self._loss.update(*inputs_of(self._loss, values, self._indexes))
        return True


def inputs_of(metric: Metric, values: Sequence[Any], indexes: Sequence[int] | None) -> Sequence[Any]:
    """Return the outputs of an evaluation network for a metric: of (loss, output, label), at the positions `indexes`,
    Loss gets the first and other metrics the rest.

    Without indexes a metric gets all outputs and may choose by `set_indexes`; if it does not, and there are three,
    mspc's own metrics treat them as (loss, output, label).
    """
    if indexes is None and (metric.indexes or len(values) != 3 or not isinstance(metric, Loss | OfPairs)):
        return values
    loss, *pair = (values[i] for i in (indexes or (0, 1, 2)))
    return (loss,) if isinstance(metric, Loss) else pair


_AMP = ("loss_scale_manager", "keep_batchnorm_fp32")
_BOOST = ("boost_config_dict", "acc_level")


class Model:
    """A network with its loss and optimizer.

    Args:
        network: a Cell, or an AutoParallel around one. Without loss_fn it returns the loss itself.
        loss_fn: a Cell or function of (output, label). optimizer: an Optimizer; without it `network` trains itself.
        metrics: names or Metrics for `eval`. eval_network: used by `eval` instead of network and loss_fn. eval_indexes:
            positions of loss, output and label among its outputs; without them it returns (loss, output, label), or the
            inputs of the metrics.
        amp_level: extent of half precision in the training step: "O0" to "O3" or "auto", see `amp.build_train_network`.
            Evaluation then runs the same network in half precision.
        boost_level: changes nothing, as a warning says.
        kwargs: loss_scale_manager and keep_batchnorm_fp32 replace those of the level.

    Raises TypeError or ValueError if an argument is of the wrong kind.
    """

    def __init__(
        self, network: Any, loss_fn: Any = None, optimizer: Any = None, metrics: Any = None,
        eval_network: Any = None,
        eval_indexes: Any = None, amp_level: str = "O0", boost_level: str = "O0",
        **kwargs: Unpack[ModelOptions],
    ) -> None:  # fmt: skip
        if not isinstance(network, Cell):
            raise ApiTypeError(f"Model: network must be a Cell, not {type(network).__name__}")
        if optimizer is not None and not isinstance(optimizer, Cell):
            raise ApiTypeError(f"Model: optimizer must be an optimizer, not {type(optimizer).__name__}")
        if loss_fn is not None and not callable(loss_fn):
            raise ApiTypeError(f"Model: loss_fn must be a Cell or a function, not {type(loss_fn).__name__}")
        if isinstance(loss_fn, type):
            raise ApiTypeError(f"Model: loss_fn is the class {loss_fn.__name__}", [f"pass {loss_fn.__name__}()"])
        if eval_network is not None and not isinstance(eval_network, Cell):
            raise ApiTypeError(f"Model: eval_network must be a Cell, not {type(eval_network).__name__}")
        amp_level = resolved("Model", amp_level)
        _check_others(eval_indexes, boost_level, kwargs)
        manager = check_manager("Model", kwargs.get("loss_scale_manager"))
        if optimizer is None and (amp_level != "O0" or manager is not None):
            what = "amp_level" if amp_level != "O0" else "loss_scale_manager"
            raise ApiValueError(f"Model: {what} needs an optimizer", ["pass optimizer, or leave it at its default"])
        self._parallel = network if isinstance(network, AutoParallel) else None
        self._network: Any = network.network if isinstance(network, AutoParallel) else network
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._amp_level = amp_level
        self._amp_settings = {key: kwargs[key] for key in _AMP if key in kwargs}
        self._metrics = get_metrics(metrics)
        self._train_network = self._built_for_training()
        self._predict_network = self._parallelized(self._network)
        self._eval_network = None if eval_network is None else self._parallelized(eval_network)
        self._eval_indexes = eval_indexes

    def _built_for_training(self) -> Cell:
        network = self._network
        if self._optimizer is not None and (self._amp_level != "O0" or self._amp_settings):
            network = build_train_network(
                network, self._optimizer, self._loss_fn, self._amp_level, **self._amp_settings
            )
        else:
            if self._loss_fn is not None:
                network = WithLossCell(network, self._loss_fn)
            if self._optimizer is not None:
                network = TrainOneStepCell(network, self._optimizer)
        return self._parallelized(network)

    def _warn_if_nothing_trains(self, name: str) -> None:
        """Warn if a loss is given without an optimizer, or with one that has no parameter of the network."""
        if self._loss_fn is None:
            return
        why = "the model has no optimizer"
        if self._optimizer is not None:
            trained = {id(parameter) for parameter in getattr(self._optimizer, "parameters", ())}
            cells = [cell for cell in (self._network, self._loss_fn) if isinstance(cell, Cell)]
            if not trained or any(id(parameter) in trained for cell in cells for parameter in cell.get_parameters()):
                return
            why = "the optimizer has the parameters of another network"
        say_once(f"{name} {why}", f"{place_of_caller()}{name} changes no parameter: {why}")

    def _parallelized(self, network: Cell) -> Cell:
        """Return a network with the AutoParallel settings of the model's own network."""
        if self._parallel is None or isinstance(network, AutoParallel):
            return network
        return self._parallel.wrapping(network)

    @property
    def train_network(self) -> Cell:
        """The cell that does one step."""
        return self._train_network

    @property
    def predict_network(self) -> Cell:
        return self._predict_network

    @property
    def eval_network(self) -> Any:
        return self._eval_network

    def train(
        self, epoch: int, train_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False,
        sink_size: int = -1, initial_epoch: int = 0,
    ) -> None:  # fmt: skip
        """Train for `epoch` passes over the data.

        Args:
            dataset_sink_mode: callbacks are called for an epoch at its end, as for one step with the epoch's last
                number. On device_target "CPU" (and in PYNATIVE_MODE) they are still called for every step.
            sink_size: with dataset_sink_mode, number of steps of an epoch; the next one continues in the data set.
            initial_epoch: number of finished epochs, included in `epoch`.

        Raises TypeError or ValueError if an argument is of the wrong kind; ExecutionError if a loss is NaN or infinite.
        """
        listeners = callbacks_of(callbacks)
        self._train("train", epoch, train_dataset, listeners, dataset_sink_mode, sink_size, initial_epoch)

    def fit(
        self, epoch: int, train_dataset: Any, valid_dataset: Any = None, valid_frequency: Any = 1,
        callbacks: Any = None, dataset_sink_mode: bool = False, valid_dataset_sink_mode: bool = False,
        sink_size: int = -1, initial_epoch: int = 0,
    ) -> None:  # fmt: skip
        """Train as `train` does, and evaluate over `valid_dataset` at the end of epochs.

        Args:
            valid_frequency: number of epochs between evaluations, or a list of epochs after which to evaluate.
            callbacks: at the end of an evaluated epoch they find the metrics in `eval_results`, with the mean loss as
                "eval_loss". Those of scripts are called for evaluations too, so they must not override methods that
                both call.

        Raises TypeError or ValueError if an argument is of the wrong kind, or the model has no metrics to evaluate.
        """
        listeners = callbacks_of(callbacks)
        for listener in listeners:
            older = [method for method in OLDER if method in vars(type(listener))]
            if older and not _is_own(listener):
                raise ApiValueError(
                    f"Model.fit: {type(listener).__name__} overrides {', '.join(older)}, which training and evaluation "
                    "both call",
                    [f"override on_train_{older[0]} or on_eval_{older[0]} instead"],
                )
        when = _frequency(valid_frequency)
        evaluation = None if valid_dataset is None else self._evaluation("Model.fit")
        valid = None if evaluation is None else (evaluation, valid_dataset, when)
        self._train("fit", epoch, train_dataset, listeners, dataset_sink_mode, sink_size, initial_epoch, valid)

    def _train(
        self, name: str, epoch: Any, dataset: Any, listeners: list[Callback], sink: Any, sink_size: Any, first: Any,
        valid: tuple[Evaluation, Any, Any] | None = None,
    ) -> None:  # fmt: skip
        _check_counts(f"Model.{name}", epoch, first, sink_size)
        self._warn_if_nothing_trains(f"Model.{name}")
        size = dataset.get_dataset_size()
        if size == 0:
            raise ApiValueError(f"Model.{name}: the data set has no batch", ["check batch size and drop_remainder"])
        limited = sink and sink_size > 0
        length = sink_size if limited else size
        _warn_of_few_rates(f"Model.{name}", self._optimizer, epoch * length)
        param = self._told("train", length, train_dataset=dataset)
        param.update(epoch_num=epoch, cur_step_num=first * length, cur_epoch_num=first, list_callback=listeners)
        param.dataset_sink_mode = sink and get_context("device_target") != "CPU"
        param.dataset_sink_mode = param.dataset_sink_mode and get_context("mode") != PYNATIVE_MODE
        run = RunContext(param)
        together, columns = length if param.dataset_sink_mode else 1, 2 if self._loss_fn is not None else 0
        training = Training(self._train_network, dataset, run, length, limited, together, columns)
        done = getattr(dataset, "asked_step", 0) % (length if limited else size)
        if done:  # the data set continues inside of an epoch
            training.begun(done)
            param.cur_step_num += done
        with CallbackManager(listeners, run) as told:
            told.tell("on_train_begin")
            for number in range(first + 1, epoch + 1):
                training.epoch(number, told)
                if valid is not None and valid[2](number):
                    self._evaluate_between(valid[0], valid[1], run, listeners)
                told.tell("on_train_epoch_end")
                param.pop("metrics", None)
                param.pop("eval_results", None)
                if run.get_stop_requested():
                    break
            told.tell("on_train_end")

    def _evaluate_between(
        self, evaluation: Evaluation, dataset: Any, run: RunContext, listeners: list[Callback]
    ) -> None:
        """Evaluate at the end of an epoch; the run's numbers are those of training again afterwards."""
        param = run.original_args()
        saved = {key: param[key] for key in ("mode", "cur_step_num", "batch_num", "net_outputs", "dataset_sink_mode")}
        param.update(mode="eval", cur_step_num=0, batch_num=dataset.get_dataset_size(), valid_dataset=dataset)
        param.update(eval_network=evaluation.network, dataset_sink_mode=False)
        told = [listener for listener in listeners if not _is_own(listener) or isinstance(listener, TimeMonitor)]
        evaluation.run(dataset, run, CallbackManager(told, run))
        param.update(saved)

    def _told(self, mode: str, batch_num: int, **more: Any) -> CallbackParam:
        return CallbackParam(
            train_network=self._train_network, network=self._network, optimizer=self._optimizer,
            loss_fn=self._loss_fn, mode=mode, batch_num=batch_num, cur_step_num=0, cur_epoch_num=0,
            parallel_mode=get_auto_parallel_context("parallel_mode"),
            device_number=get_auto_parallel_context("device_num"), **more,
        )  # fmt: skip

    def build(
        self, train_dataset: Any = None, valid_dataset: Any = None, sink_size: int = -1, epoch: int = 1,
        sink_mode: bool = True,
    ) -> None:  # fmt: skip
        """Compile nothing yet: a graph is compiled at its first step. If ranks will have slices, the parameters get the
        layouts of training with `train_dataset`, as by `infer_train_layout`; other arguments are only checked. Raise
        TypeError or ValueError if one is of the wrong kind."""
        for what, dataset in (("train_dataset", train_dataset), ("valid_dataset", valid_dataset)):
            if dataset is not None and not hasattr(dataset, "create_tuple_iterator"):
                raise ApiTypeError(f"Model.build: {what} must be a data set or None, not {type(dataset).__name__}")
        _check_counts("Model.build", epoch, 0, sink_size)
        cuts = self._parallel is not None or get_auto_parallel_context("parallel_mode") in SHARDED
        if train_dataset is not None and cuts and get_context("mode") != PYNATIVE_MODE:
            self.infer_train_layout(train_dataset)

    def eval(self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False) -> dict[str, Any]:
        """Return the metrics over a data set, by name.

        If several ranks share the run, the metrics cover the data of all ranks and are equal on all; so all must call
        this. `dataset_sink_mode` changes nothing. Raise ValueError if the model has no metrics, or ranks that share
        batches have different numbers of them; TypeError if an argument is of the wrong kind.
        """
        listeners = callbacks_of(callbacks)
        evaluation = self._evaluation("Model.eval")
        param = self._told("eval", valid_dataset.get_dataset_size(), valid_dataset=valid_dataset)
        param.update(eval_network=evaluation.network, dataset_sink_mode=False, list_callback=listeners)
        run = RunContext(param)
        with CallbackManager(listeners, run) as told:
            evaluation.run(valid_dataset, run, told)
        return param.metrics

    def _evaluation(self, name: str) -> Evaluation:
        """Return the evaluation. Raise ValueError for a model that cannot be evaluated."""

        if not self._metrics:
            raise ApiValueError(f"{name}: the model has no metrics", ["pass metrics={'accuracy'} to Model"])
        if self._eval_network is not None:
            return Evaluation(self._eval_network, self._metrics, self._eval_indexes)
        if self._loss_fn is None:
            raise ApiValueError(f"{name}: the model has neither loss_fn nor eval_network")
        widens = self._amp_level in ("O2", "O3")
        self._eval_network = self._parallelized(WithEvalCell(self._network, self._loss_fn, widens))
        self._eval_indexes = [0, 1, 2]
        return Evaluation(self._eval_network, self._metrics, self._eval_indexes)

    def predict(self, *predict_data: Any, backend: Any = None, config: Any = None) -> Any:
        """Return the network's output for the rows of this rank. Raise TypeError for data that are no Tensors,
        ValueError for another backend than mspc, RuntimeError for a network that adds up losses of parts of a batch."""
        _check_data("predict", predict_data)
        adding = [cell for _, cell in self._predict_network.cells_and_names() if type(cell) is GradAccumulationCell]
        if adding:
            raise ApiRuntimeError(
                "Model.predict: GradAccumulationCell adds up the losses of parts of a batch and predicts nothing",
                ["predict with the network inside of it"],
            )
        if backend not in (None, "lite"):
            raise ApiValueError(f"Model.predict: backend {backend!r} is neither None nor 'lite'")
        if backend is not None:
            say_once("Model.predict", "Model.predict(backend='lite') changes nothing here: the network runs as ever")
        self._predict_network.set_train(False)
        return self._predict_network(*predict_data)

    def infer_predict_layout(self, *predict_data: Any, skip_backend_compile: bool = False) -> dict[str, Any]:
        """Return the layouts of the network's parameters for prediction: for every name the mesh, the mesh axis that
        shards each dimension (counted from the last, -1: none), a rank's shape, 0, True and "". Raise RuntimeError
        outside of graph mode, or in a mode that shards nothing; TypeError for data that are no Tensors, or an option
        that is no bool."""
        _check_data("infer_predict_layout", predict_data)
        self._predict_network.set_train(False)
        return self._layout("infer_predict_layout", self._predict_network, predict_data)

    def infer_train_layout(
        self, train_dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1
    ) -> dict[str, Any]:
        """Return the layouts of parameters and states of the optimizer for training with this data, in the form of
        `infer_predict_layout`. Only one row of the data set is read; nothing runs. dataset_sink_mode and sink_size are
        those of the later call of `train`. Raise RuntimeError outside of graph mode, or in a mode that shards nothing;
        TypeError or ValueError if dataset_sink_mode is not True, sink_size is neither -1 nor positive, or the data set
        has no row or another number of columns."""
        if not dataset_sink_mode:
            raise ApiValueError("Model.infer_train_layout: dataset_sink_mode must be True")
        _check_counts("Model.infer_train_layout", 1, 0, sink_size)
        row = first_row(train_dataset, 2 if self._loss_fn is not None else 0)
        self._train_network.set_train(True)
        return self._layout("infer_train_layout", self._train_network, row)

    def _layout(self, method: str, network: Any, args: Sequence[Any]) -> dict[str, Any]:
        """Return the layouts of the parameters of a call. Raise RuntimeError outside of graph mode, or in modes that
        shard nothing."""
        if get_context("mode") == PYNATIVE_MODE:
            raise ApiRuntimeError(f"Model.{method} needs graph mode")
        mode = get_auto_parallel_context("parallel_mode")
        if self._parallel is None and mode not in SHARDED:
            raise ApiRuntimeError(f"Model.{method} needs {' or '.join(SHARDED)} mode, and the mode is {mode}")
        CellGraphExecutor().compile(network, *args)
        return dict(network.parameter_layout_dict)


def _check_data(method: str, data: Sequence[Any]) -> None:
    """Raise TypeError for data that are no Tensors."""
    for entry in data:
        if not isinstance(entry, (Tensor, tuple, list)):
            raise ApiTypeError(f"Model.{method} takes Tensors, not {type(entry).__name__}")


def _check_others(eval_indexes: Any, boost_level: Any, kwargs: Collection[str]) -> None:
    """Raise TypeError or ValueError for invalid arguments of Model."""
    for key in kwargs:
        if key not in (*_AMP, *_BOOST):
            raise ApiValueError(f"Model has no argument {key!r}")
    if eval_indexes is not None and not (
        isinstance(eval_indexes, list | tuple) and len(eval_indexes) == 3
        and all(isinstance(i, int) and not isinstance(i, bool) for i in eval_indexes)
    ):  # fmt: skip
        raise ApiValueError(
            f"Model: eval_indexes {eval_indexes!r} must list three integers: the positions of loss, output and label"
        )
    check_boost("Model", boost_level)
    for key in _BOOST:
        if key in kwargs:
            say_once(f"Model {key}", f"Model({key}=...) changes nothing here: no step is approximated")


def _warn_of_few_rates(name: str, optimizer: Any, steps: int) -> None:
    """Warn if a list of learning rates ends before the training does."""
    rates = getattr(optimizer, "learning_rate", ())
    for rate in rates if isinstance(rates, tuple) else (rates,):
        if not isinstance(rate, Tensor) or not rate.ndim:
            continue
        if rate.size < steps:  # the optimizer's own count is not read: a checkpoint's values are not loaded yet
            text = f"{steps} steps are more than the {rate.size} entries in the list of learning rates"
            say_once(f"{name} rates", f"{place_of_caller()}{name}: {text}; further steps use the last one")


def _check_counts(name: str, epoch: int, initial_epoch: int, sink_size: int) -> None:
    """Raise ValueError for invalid epochs and steps."""
    if epoch < 1:
        raise ApiValueError(f"{name}: epoch {epoch!r} must be a positive integer")
    if not 0 <= initial_epoch < epoch:
        raise ApiValueError(f"{name}: initial_epoch {initial_epoch!r} must be from 0 to {epoch - 1}")
    if sink_size < 1 and sink_size != -1:
        raise ApiValueError(f"{name}: sink_size {sink_size!r} must be -1 or a positive integer")


def _frequency(value: Any) -> Any:
    """Return a function of an epoch's number that returns whether to evaluate after it. Raise TypeError or ValueError
    for an invalid frequency."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ApiValueError(f"Model.fit: valid_frequency {value} must be at least 1")
        return lambda number: number % value == 0
    if not isinstance(value, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise ApiTypeError(f"Model.fit: valid_frequency must be an integer or a list of epochs, not {value!r}")
    return lambda number: number in value


def _is_own(listener: Callback) -> bool:
    return type(listener).__module__.startswith("mspc.")

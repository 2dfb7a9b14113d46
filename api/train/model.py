"""`Model`: trains and evaluates a network over data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.amp import build_train_network, resolved
from mspc.api.common.executor import CellGraphExecutor
from mspc.api.common.tensor import Tensor
from mspc.api.context import PYNATIVE_MODE, get_auto_parallel_context, get_context
from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.nn.wrap import TrainOneStepCell, WithEvalCell, WithLossCell
from mspc.api.parallel.auto_parallel import AutoParallel
from mspc.api.train.callback import Callback, CallbackParam, RunContext
from mspc.api.train.loss_scale_manager import check_manager
from mspc.api.train.metrics import get_metrics


class Model:
    """A network with what trains it.

    Args:
        network: a Cell, or an AutoParallel around one. Without loss_fn it returns the loss itself.
        loss_fn: a Cell or function of (output, label). optimizer: an Optimizer; without it `network`
            trains itself.
        metrics: names or Metrics for `eval`. eval_network: used by `eval` instead of network and
            loss_fn; it returns
            (loss, output, label).
        amp_level: how much of the training step computes in half precision: "O0" to "O3" or "auto", see
            `amp.build_train_network`. Evaluation then runs the same network in half precision.
        kwargs: loss_scale_manager and keep_batchnorm_fp32 replace what the level says.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(
        self, network: Any, loss_fn: Any = None, optimizer: Any = None, metrics: Any = None,
        eval_network: Any = None,
        eval_indexes: Any = None, amp_level: str = "O0", boost_level: str = "O0", **kwargs: Any,
    ) -> None:  # fmt: skip
        if not isinstance(network, Cell):
            raise ApiTypeError(f"Model: network must be a Cell, not {type(network).__name__}")
        if optimizer is not None and not isinstance(optimizer, Cell):
            raise ApiTypeError(f"Model: optimizer must be an optimizer, not {type(optimizer).__name__}")
        if loss_fn is not None and not callable(loss_fn):
            raise ApiTypeError(f"Model: loss_fn must be a Cell or a function, not {type(loss_fn).__name__}")
        amp_level = resolved("Model", amp_level)
        for key in kwargs:
            if key not in ("loss_scale_manager", "keep_batchnorm_fp32"):
                raise ApiValueError(f"Model has no argument {key!r}")
        manager = check_manager("Model", kwargs.get("loss_scale_manager"))
        if optimizer is None and (amp_level != "O0" or manager is not None):
            what = "amp_level" if amp_level != "O0" else "loss_scale_manager"
            raise ApiValueError(f"Model: {what} needs an optimizer", ["pass optimizer, or leave it at its default"])
        self._parallel = network if isinstance(network, AutoParallel) else None
        self._network: Any = network.network if isinstance(network, AutoParallel) else network
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._amp_level = amp_level
        self._amp_settings = kwargs
        self._metrics = get_metrics(metrics)
        self._train_network = self._built_for_training()
        self._eval_network = eval_network
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
        return network if self._parallel is None else self._parallel.wrapping(network)

    @property
    def train_network(self) -> Cell:
        """The cell that does one step."""
        return self._train_network

    @property
    def predict_network(self) -> Cell:
        return self._network

    @property
    def eval_network(self) -> Any:
        return self._eval_network

    def train(
        self, epoch: int, train_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False,
        sink_size: int = -1, initial_epoch: int = 0,
    ) -> None:  # fmt: skip
        """Train for `epoch` passes over the data.

        `dataset_sink_mode` and `sink_size` change nothing but the count: with a sink_size an epoch is
        that many steps.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind. ExecutionError: a loss is NaN or
            infinite.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise ApiValueError(f"Model.train: epoch {epoch!r} must be a positive integer")
        if not isinstance(initial_epoch, int) or not 0 <= initial_epoch < epoch:
            raise ApiValueError(f"Model.train: initial_epoch {initial_epoch!r} must be from 0 to {epoch - 1}")
        if not isinstance(dataset_sink_mode, bool):
            raise ApiTypeError(
                f"Model.train: dataset_sink_mode must be True or False, not {dataset_sink_mode!r}"
            )
        steps = train_dataset.get_dataset_size()
        limit = sink_size if dataset_sink_mode and sink_size > 0 else None
        if steps == 0:
            raise ApiValueError(
                "Model.train: the data set has no batch", ["check batch size and drop_remainder"]
            )
        self._train_network.set_train(True)
        param = CallbackParam(
            train_network=self._train_network, network=self._network, optimizer=self._optimizer, mode="train",
            epoch_num=epoch, batch_num=limit or steps, train_dataset=train_dataset,
            cur_step_num=initial_epoch * steps,
            parallel_mode=get_auto_parallel_context("parallel_mode"),
            device_number=get_auto_parallel_context("device_num"), dataset_sink_mode=dataset_sink_mode,
            metrics=self._metrics, eval_results={}, cur_epoch_num=initial_epoch,
        )  # fmt: skip
        run = RunContext(param)
        listeners = _callbacks(callbacks)
        param.list_callback = listeners
        _tell(listeners, "on_train_begin", run)
        for number in range(initial_epoch + 1, epoch + 1):
            param.cur_epoch_num = number
            _tell(listeners, "on_train_epoch_begin", run)
            self._run_epoch(train_dataset, param, run, listeners, limit)
            _tell(listeners, "on_train_epoch_end", run)
            if run.get_stop_requested():
                break
        _tell(listeners, "on_train_end", run)

    def _run_epoch(
        self,
        dataset: Any,
        param: CallbackParam,
        run: RunContext,
        listeners: list[Callback],
        limit: int | None,
    ) -> None:
        for step, row in enumerate(dataset.create_tuple_iterator(num_epochs=1)):
            if limit is not None and step >= limit:
                return
            param.cur_step_num += 1
            param.train_dataset_element = row
            _tell(listeners, "on_train_step_begin", run)
            param.net_outputs = self._train_network(*row)
            _tell(listeners, "on_train_step_end", run)
            if run.get_stop_requested():
                return

    def build(self, train_dataset: Any = None, valid_dataset: Any = None, **_: Any) -> None:
        """Accepted; a graph is compiled at its first step."""

    def eval(
        self, valid_dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = False
    ) -> dict[str, Any]:
        """The metrics over a data set, by name.

        Raises:
            ValueError: the model has no metrics.
        """
        if not self._metrics:
            raise ApiValueError(
                "Model.eval: the model has no metrics", ["pass metrics={'accuracy'} to Model"]
            )
        if self._eval_network is None:
            if self._loss_fn is None:
                raise ApiValueError("Model.eval: the model has neither loss_fn nor eval_network")
            self._eval_network = WithEvalCell(self._network, self._loss_fn)
        network = self._eval_network
        network.set_train(False)
        param = CallbackParam(
            eval_network=network, network=self._network, mode="eval", valid_dataset=valid_dataset,
            batch_num=valid_dataset.get_dataset_size(), cur_step_num=0, metrics=self._metrics,
            cur_epoch_num=0,
        )  # fmt: skip
        run = RunContext(param)
        listeners = _callbacks(callbacks)
        for metric in self._metrics.values():
            metric.clear()
        _tell(listeners, "on_eval_begin", run)
        for row in valid_dataset.create_tuple_iterator(num_epochs=1):
            param.cur_step_num += 1
            param.net_outputs = network(*row)
            for metric in self._metrics.values():
                metric.update(*metric.chosen(param.net_outputs, self._eval_indexes))
            _tell(listeners, "on_eval_step_end", run)
        results = {name: metric.eval() for name, metric in self._metrics.items()}
        param.eval_results = param.metrics = results
        _tell(listeners, "on_eval_end", run)
        return results

    def predict(self, *predict_data: Any, backend: Any = None) -> Any:
        """The network's output. Raises TypeError for data that are no Tensors."""
        _check_data("predict", predict_data)
        self._network.set_train(False)
        return self._network(*predict_data)

    def infer_predict_layout(self, *predict_data: Any, skip_backend_compile: bool = False) -> dict[str, Any]:
        """How the parameters of the network lie on the ranks when it predicts: for every name the mesh, the mesh axis
        that cuts each dimension (counted from the last, -1: none), a rank's shape, 0, True and "".

        Raises:
            RuntimeError: not in graph mode. TypeError: data that are no Tensors, or an option that is no bool.
        """
        if get_context("mode") == PYNATIVE_MODE:
            raise ApiRuntimeError("Model.infer_predict_layout needs graph mode")
        if not isinstance(skip_backend_compile, bool):
            raise ApiTypeError(f"Model.infer_predict_layout: skip_backend_compile is {skip_backend_compile!r}, no bool")
        _check_data("infer_predict_layout", predict_data)
        self._network.set_train(False)
        network: Any = self._network if self._parallel is None else self._parallel.wrapping(self._network)
        CellGraphExecutor().compile(network, *predict_data)
        return dict(network.parameter_layout_dict)


def _check_data(method: str, data: Sequence[Any]) -> None:
    """Raise TypeError for data that are no Tensors."""
    for entry in data:
        if not isinstance(entry, (Tensor, tuple, list)):
            raise ApiTypeError(f"Model.{method} takes Tensors, not {type(entry).__name__}")


def _callbacks(callbacks: Any) -> list[Callback]:
    found = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for entry in found:
        if not isinstance(entry, Callback):
            raise ApiTypeError(f"callbacks takes Callbacks, not {type(entry).__name__}")
    return found


def _tell(listeners: list[Callback], event: str, run: RunContext) -> None:
    for listener in listeners:
        getattr(listener, event)(run)

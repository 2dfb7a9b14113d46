"""Model, callbacks, checkpoints. The launcher is a stub: it counts down losses."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Model, Parameter, Tensor, nn
from mspc.communication import init
from mspc.dataset import GeneratorDataset
from mspc.ir.diagnostics import ExecutionError
from mspc.mindspore_api import call_handler
from mspc.parallel import AutoParallel
from mspc.train import CheckpointConfig, LossMonitor, ModelCheckpoint


class Losses:
    """Returns 1, 1/2, 1/3, ... or what it is given."""

    def __init__(self, losses=None):
        self.losses = losses
        self.calls = []

    def call(self, target, args):
        self.calls.append((target, args))
        n = len(self.calls)
        return Tensor(np.float32(self.losses[n - 1] if self.losses else 1 / n))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor([[1.0, 2.0]]), "w")

    def construct(self, x):
        return x * self.w


def data(steps=3):
    def rows():
        for i in range(steps):
            yield np.full((2, 2), i, np.float32), np.zeros((2, 2), np.float32)

    return GeneratorDataset(rows, ["x", "y"])


def model(**settings):
    net = Net()
    return net, Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9), **settings)


def test_the_step_is_built_from_network_loss_and_optimizer():
    recorder = Losses()
    call_handler.install(recorder)
    net, trained = model()
    trained.train(1, data(2))
    step, args = recorder.calls[0]
    assert isinstance(step, nn.TrainOneStepCell)
    assert isinstance(step.network, nn.WithLossCell)
    assert step.network.backbone_network is net
    assert step.training
    assert [a.array[0, 0] for a in args] == [0, 0]
    assert recorder.calls[1][1][0].array[0, 0] == 1
    assert [p.name for p in net.get_parameters()] == ["w"]


def test_auto_parallel_networks_stay_outermost():
    init()
    recorder = Losses()
    call_handler.install(recorder)
    net = Net()
    parallel = AutoParallel(net)
    parallel.dataset_strategy("full_batch")
    Model(parallel, nn.MSELoss(), nn.SGD(net.trainable_params())).train(1, data(1))
    target = recorder.calls[0][0]
    assert isinstance(target, AutoParallel)
    assert target.parallel_settings["dataset_strategy"] == "full_batch"
    assert target.network.network.backbone_network is net
    assert target.network.network.backbone_network.training


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_stops(loss, capsys):
    call_handler.install(Losses([1.0, float(loss)]))
    with pytest.raises(ExecutionError) as caught:
        model()[1].train(1, data(3), LossMonitor())
    assert caught.value.message == f"epoch: 1 step: 2, loss is {loss}: training stops"
    assert caught.value.exit_status == 1
    assert capsys.readouterr().out == "epoch: 1 step: 1, loss is 1.0\n"


def test_checkpoints_hold_all_parameters_under_epoch_and_step(tmp_path):
    call_handler.install(Losses())
    folder = tmp_path / "0"
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, append_info=["epoch_num", {"a": 1.5}])
    callback = ModelCheckpoint("CKP", str(folder), config)
    model()[1].train(2, data(3), [callback])
    assert sorted(p.name for p in folder.iterdir()) == ["CKP-2_1.safetensors", "CKP-2_3.safetensors"]
    assert callback.latest_ckpt_file_name == str(folder / "CKP-2_3.safetensors")
    loaded = ms.load_checkpoint(callback.latest_ckpt_file_name)
    assert sorted(loaded) == ["a", "epoch_num", "global_step", "learning_rate", "moments.w", "momentum", "w"]
    assert loaded["w"].asnumpy().tolist() == [[1, 2]]
    assert (loaded["epoch_num"].item(), loaded["a"].item()) == (2, 1.5)


def test_the_last_step_is_always_saved(tmp_path):
    call_handler.install(Losses())
    config = CheckpointConfig(save_checkpoint_steps=10)
    model()[1].train(1, data(3), ModelCheckpoint("m", tmp_path, config))
    assert [p.name for p in tmp_path.iterdir()] == ["m-1_3.safetensors"]


def test_saving_and_loading(tmp_path):
    net = Net()
    ms.save_checkpoint(net, str(tmp_path / "deep" / "net"))
    net.w.set_data(Tensor([[5.0, 6.0]]))
    loaded = ms.load_checkpoint(str(tmp_path / "deep" / "net"))
    assert ms.load_param_into_net(net, loaded) == ([], [])
    assert net.w.asnumpy().tolist() == [[1, 2]]
    ms.save_checkpoint(
        [{"name": "w", "data": Tensor([[7.0, 8.0]])}, {"name": "z", "data": Tensor(1)}], str(tmp_path / "b")
    )
    ms.load_checkpoint(str(tmp_path / "b"), net)
    assert net.w.asnumpy().tolist() == [[7, 8]]
    assert ms.load_param_into_net(net, {"z": Tensor(1)}) == (["w"], ["z"])
    assert list(ms.load_checkpoint(str(tmp_path / "b"), filter_prefix="w")) == ["z"]
    assert list(ms.load_checkpoint(str(tmp_path / "b"), choice_func=lambda name: name == "w")) == ["w"]


def test_checkpoints_fit_wrapped_and_bare_networks(tmp_path):
    class Holder(nn.Cell):
        def __init__(self):
            super().__init__()
            self.net = Net()

    bare, wrapped = Net(), Holder()
    assert ms.load_param_into_net(wrapped, {"w": Tensor([[3.0, 4.0]])}) == ([], [])
    assert wrapped.net.w.asnumpy().tolist() == [[3, 4]]
    assert ms.load_param_into_net(bare, {"net.w": Tensor([[5.0, 6.0]])}) == ([], [])
    assert bare.w.asnumpy().tolist() == [[5, 6]]

"""This is the training of `train.py` with what it lacks: the gradients are averaged over the ranks before they are
applied, so that all ranks have the same weights, those that one device would have."""

import mindspore as ms
from mindspore import nn, ops, train
from train import create_dataset, loss_fn, net, optimizer, options


class TrainStep(nn.TrainOneStepCell):
    """A training step that averages the gradients over the ranks."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.gradients = ops.GradOperation(get_by_list=True)
        self.average = nn.DistributedGradReducer(optimizer.parameters, mean=True)

    def construct(self, data, label):
        loss = self.network(data, label)
        grads = self.gradients(self.network, self.weights)(data, label)
        return ops.depend(loss, self.optimizer(self.average(grads)))


if __name__ == "__main__":
    step = TrainStep(nn.WithLossCell(net, loss_fn), optimizer)
    model = ms.Model(step)
    model.train(options().epochs, create_dataset(), callbacks=[train.LossMonitor(20)])

# Made by `make goldens`.
from mspc.train import *
from mindspore.train import amp as amp
from mindspore.train import callback as callback
from mindspore.train import metrics as metrics
from mindspore.train import model as model
from mindspore.train import serialization as serialization

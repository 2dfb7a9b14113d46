# Made by `make goldens`.
from mspc.nn import *
from mindspore.nn import loss as loss
from mindspore.nn import optim as optim
from mindspore.nn import utils as utils

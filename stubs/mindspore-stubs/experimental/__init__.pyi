# Made by `make goldens`.
from mspc.experimental import *
from mindspore.experimental import optim as optim

# Made by `make goldens`.
from mspc import *
from mindspore import _c_expression as _c_expression
from mindspore import _extends as _extends
from mindspore import amp as amp
from mindspore import boost as boost
from mindspore import common as common
from mindspore import communication as communication
from mindspore import context as context
from mindspore import dataset as dataset
from mindspore import device as device
from mindspore import device_context as device_context
from mindspore import dtype as dtype
from mindspore import experimental as experimental
from mindspore import hal as hal
from mindspore import mindrecord as mindrecord
from mindspore import mint as mint
from mindspore import nn as nn
from mindspore import numpy as numpy
from mindspore import ops as ops
from mindspore import parallel as parallel
from mindspore import runtime as runtime
from mindspore import train as train

# Made by `make goldens`.
from mspc.api.nn.loss import BCELoss as BCELoss
from mspc.api.nn.loss import CrossEntropyLoss as CrossEntropyLoss
from mspc.api.nn.loss import L1Loss as L1Loss
from mspc.api.nn.loss import LossBase as LossBase
from mspc.api.nn.loss import MSELoss as MSELoss
from mspc.api.nn.loss import NLLLoss as NLLLoss
from mspc.api.nn.loss import RMSELoss as RMSELoss
from mspc.api.nn.loss import SmoothL1Loss as SmoothL1Loss
from mspc.api.nn.loss import SoftmaxCrossEntropyWithLogits as SoftmaxCrossEntropyWithLogits

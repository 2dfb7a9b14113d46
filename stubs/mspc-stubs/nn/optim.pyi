# Made by `make goldens`.
from mspc.api.nn.optim.asgd import ASGD as ASGD
from mspc.api.nn.optim.adafactor import AdaFactor as AdaFactor
from mspc.api.nn.optim.adamax import AdaMax as AdaMax
from mspc.api.nn.optim.adadelta import Adadelta as Adadelta
from mspc.api.nn.optim.adaptive import Adagrad as Adagrad
from mspc.api.nn.optim.adam import Adam as Adam
from mspc.api.nn.optim.adam import AdamWeightDecay as AdamWeightDecay
from mspc.api.nn.optim.adaptive import FTRL as FTRL
from mspc.api.nn.optim.lars import LARS as LARS
from mspc.api.nn.optim.lamb import Lamb as Lamb
from mspc.api.nn.optim.adam import LazyAdam as LazyAdam
from mspc.api.nn.optim.momentum import Momentum as Momentum
from mspc.api.nn.optim.optimizer import Optimizer as Optimizer
from mspc.api.nn.optim.adaptive import RMSProp as RMSProp
from mspc.api.nn.optim.rprop import Rprop as Rprop
from mspc.api.nn.optim.sgd import SGD as SGD
from mspc.api.nn.optim.optimizer import opt_init_args_register as opt_init_args_register

# Made by `make goldens`.
from mspc.api.mint.nn.functional import cross_entropy as cross_entropy
from mspc.api.mint.nn.functional import dropout as dropout
from mspc.api.mint.nn.functional import embedding as embedding
from mspc.api.mint.nn.functional import gelu as gelu
from mspc.api.mint.nn.functional import l1_loss as l1_loss
from mspc.api.mint.nn.functional import layer_norm as layer_norm
from mspc.api.mint.nn.functional import linear as linear
from mspc.api.mint.nn.functional import log_softmax as log_softmax
from mspc.api.mint.nn.functional import mse_loss as mse_loss
from mspc.api.mint.nn.functional import relu as relu
from mspc.api.mint.nn.functional import relu6 as relu6
from mspc.api.mint.nn.functional import sigmoid as sigmoid
from mspc.api.mint.nn.functional import silu as silu
from mspc.api.mint.nn.functional import softmax as softmax
from mspc.api.mint.nn.functional import tanh as tanh

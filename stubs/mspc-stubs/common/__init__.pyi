# Made by `make goldens`.
from mspc.api.common.jit_config import JitConfig as JitConfig
from mspc.api.common.parameter import Parameter as Parameter
from mspc.api.common.parameter import ParameterTuple as ParameterTuple
from mspc.api.common.row_tensor import RowTensor as RowTensor
from mspc.api.common.tensor import Tensor as Tensor
from mspc.api.common.seed import get_seed as get_seed
from mspc.api.common.gradient import jit as jit
from mspc.api.common.api import lazy_inline as lazy_inline
from mspc.api.common.api import mutable as mutable
from mspc.api.common.seed import set_seed as set_seed
from mspc.common import dtype as dtype
from mspc.common import initializer as initializer
from mspc.common import parameter as parameter
from mspc.common import seed as seed
from mspc.common import tensor as tensor

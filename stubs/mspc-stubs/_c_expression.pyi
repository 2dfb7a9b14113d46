# Made by `make goldens`.
from mspc.api._c_expression import GraphExecutor_ as GraphExecutor_
from mspc.api._c_expression import MSContext as MSContext
from mspc.api.common.tensor import Tensor as Tensor
from mspc.api._c_expression import security as security
from mspc.api._c_expression.caches import swap_cache as swap_cache

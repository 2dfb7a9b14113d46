# Made by `make goldens`.
from mspc.api.common.tensor import STORED as STORED
from mspc.api.common.tensor import Tensor as Tensor
from mspc.api.common.tensor import WHOLE as WHOLE
from mspc.api.common.tensor import as_array as as_array
from mspc.api.common.tensor import derived as derived

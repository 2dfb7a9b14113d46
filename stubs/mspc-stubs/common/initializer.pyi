# Made by `make goldens`.
from mspc.api.common.initializers import Constant as Constant
from mspc.api.common.shaped_initializers import Dirac as Dirac
from mspc.api.common.initializers import HeNormal as HeNormal
from mspc.api.common.initializers import HeUniform as HeUniform
from mspc.api.common.shaped_initializers import Identity as Identity
from mspc.api.common.initializers import Initializer as Initializer
from mspc.api.common.initializers import Normal as Normal
from mspc.api.common.initializers import One as One
from mspc.api.common.shaped_initializers import Orthogonal as Orthogonal
from mspc.api.common.shaped_initializers import Sparse as Sparse
from mspc.api.common.initializers import TruncatedNormal as TruncatedNormal
from mspc.api.common.initializers import Uniform as Uniform
from mspc.api.common.shaped_initializers import VarianceScaling as VarianceScaling
from mspc.api.common.initializers import XavierNormal as XavierNormal
from mspc.api.common.initializers import XavierUniform as XavierUniform
from mspc.api.common.initializers import Zero as Zero
from mspc.api.common.initializer import initializer as initializer

# Made by `make goldens`.
from mspc.api.common.initial_values import Constant as Constant
from mspc.api.common.initial_values import HeNormal as HeNormal
from mspc.api.common.initial_values import HeUniform as HeUniform
from mspc.api.common.initial_values import Identity as Identity
from mspc.api.common.initial_values import Initializer as Initializer
from mspc.api.common.initial_values import Normal as Normal
from mspc.api.common.initial_values import One as One
from mspc.api.common.initial_values import Orthogonal as Orthogonal
from mspc.api.common.initial_values import TruncatedNormal as TruncatedNormal
from mspc.api.common.initial_values import Uniform as Uniform
from mspc.api.common.initial_values import XavierNormal as XavierNormal
from mspc.api.common.initial_values import XavierUniform as XavierUniform
from mspc.api.common.initial_values import Zero as Zero
from mspc.api.common.initializer import initializer as initializer

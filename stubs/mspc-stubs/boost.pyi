# Made by `make goldens`.
from mspc.api.boost.grad_accumulation import GradientAccumulation as GradientAccumulation

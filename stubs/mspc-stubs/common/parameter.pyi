# Made by `make goldens`.
from mspc.api.common.parameter import Parameter as Parameter
from mspc.api.common.parameter import ParameterTuple as ParameterTuple
from mspc.api.common.parameter import Store as Store
from mspc.api.common.parameter import UNNAMED as UNNAMED

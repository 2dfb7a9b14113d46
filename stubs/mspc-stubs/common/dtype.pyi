# Made by `make goldens`.
from mspc.api.common.dtype import FUNCTIONS as FUNCTIONS
from mspc.api.common.dtype import NAMES as NAMES
from mspc.api.common.dtype import all_types as all_types
from mspc.api.common.dtype import bool_ as bool_
from mspc.api.common.dtype import complex_type as complex_type
from mspc.api.common.dtype import dtype_to_nptype as dtype_to_nptype
from mspc.api.common.dtype import dtype_to_pytype as dtype_to_pytype
from mspc.api.common.dtype import float_type as float_type
from mspc.api.common.dtype import get_py_obj_dtype as get_py_obj_dtype
from mspc.api.common.dtype import int_type as int_type
from mspc.api.common.dtype import number_type as number_type
from mspc.api.common.dtype import promoted_scalar as promoted_scalar
from mspc.api.common.dtype import pytype_to_dtype as pytype_to_dtype
from mspc.api.common.dtype import uint_type as uint_type

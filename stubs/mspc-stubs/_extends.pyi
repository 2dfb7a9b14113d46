# Made by `make goldens`.
from mspc.api._extends import cell_attr_register as cell_attr_register

# Made by `make goldens`.
from mspc.api.runtime import launch_blocking as launch_blocking
from mspc.api.runtime import max_memory_allocated as max_memory_allocated
from mspc.api.runtime import set_device as set_device
from mspc.api.runtime import set_memory as set_memory
from mspc.api.runtime import synchronize as synchronize

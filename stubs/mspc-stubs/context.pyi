# Made by `make goldens`.
from mspc.api.context import FrozenContext as FrozenContext
from mspc.api.context import GRAPH_MODE as GRAPH_MODE
from mspc.api.context import PYNATIVE_MODE as PYNATIVE_MODE
from mspc.api.context import ParallelMode as ParallelMode
from mspc.api.context import freeze as freeze
from mspc.api.context import get_auto_parallel_context as get_auto_parallel_context
from mspc.api.context import get_context as get_context
from mspc.api.context import get_offload_context as get_offload_context
from mspc.api.context import reset_auto_parallel_context as reset_auto_parallel_context
from mspc.api.context import set_auto_parallel_context as set_auto_parallel_context
from mspc.api.context import set_context as set_context
from mspc.api.context import set_offload_context as set_offload_context
from mspc.api.context import set_ps_context as set_ps_context

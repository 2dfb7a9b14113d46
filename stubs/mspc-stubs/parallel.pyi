# Made by `make goldens`.
from mspc.api.parallel.auto_parallel import AutoParallel as AutoParallel
from mspc.api.parallel.layout import Layout as Layout
from mspc.api.parallel.algo_parameters import get_algo_parameters as get_algo_parameters
from mspc.api.parallel.algo_parameters import reset_algo_parameters as reset_algo_parameters
from mspc.api.parallel.algo_parameters import set_algo_parameters as set_algo_parameters
from mspc.api.parallel.strategy_files import set_op_strategy_config as set_op_strategy_config
from mspc.api.parallel.shard import shard as shard

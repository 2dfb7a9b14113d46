# Made by `make goldens`.
from mspc.api.parallel.auto_parallel import AutoParallel as AutoParallel
from mspc.api.parallel.layout import Layout as Layout
from mspc.api.parallel.checkpoint_transform import build_searched_strategy as build_searched_strategy
from mspc.api.parallel.algo_parameters import get_algo_parameters as get_algo_parameters
from mspc.api.parallel.checkpoint_transform import load_distributed_checkpoint as load_distributed_checkpoint
from mspc.api.parallel.checkpoint_transform import merge_sliced_parameter as merge_sliced_parameter
from mspc.api.parallel.checkpoint_transform import rank_list_for_convert as rank_list_for_convert
from mspc.api.parallel.checkpoint_transform import rank_list_for_transform as rank_list_for_transform
from mspc.api.parallel.algo_parameters import reset_algo_parameters as reset_algo_parameters
from mspc.api.parallel.checkpoint_transform import restore_group_info_list as restore_group_info_list
from mspc.api.parallel.algo_parameters import set_algo_parameters as set_algo_parameters
from mspc.api.parallel.strategy_files import set_op_strategy_config as set_op_strategy_config
from mspc.api.parallel.shard import shard as shard
from mspc.api.parallel.checkpoint_transform import transform_checkpoint_by_rank as transform_checkpoint_by_rank
from mspc.api.parallel.checkpoint_transform import transform_checkpoints as transform_checkpoints
from mspc.parallel import transformer as transformer

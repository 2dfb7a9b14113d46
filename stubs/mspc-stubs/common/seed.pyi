# Made by `make goldens`.
from mspc.api.common.seed import DEFAULT_SEED as DEFAULT_SEED
from mspc.api.common.seed import eager_seeds as eager_seeds
from mspc.api.common.seed import get_seed as get_seed
from mspc.api.common.seed import new_dropout_seeds as new_dropout_seeds
from mspc.api.common.seed import next_initial_value as next_initial_value
from mspc.api.common.seed import of_pipelines as of_pipelines
from mspc.api.common.seed import seeds_of_call as seeds_of_call
from mspc.api.common.seed import set_seed as set_seed

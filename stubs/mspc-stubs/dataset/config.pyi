# Made by `make goldens`.
from mspc.api.dataset.config import get_enable_shared_mem as get_enable_shared_mem
from mspc.api.dataset.config import get_num_parallel_workers as get_num_parallel_workers
from mspc.api.dataset.config import get_prefetch_size as get_prefetch_size
from mspc.api.dataset.config import get_seed as get_seed
from mspc.api.dataset.config import set_enable_shared_mem as set_enable_shared_mem
from mspc.api.dataset.config import set_num_parallel_workers as set_num_parallel_workers
from mspc.api.dataset.config import set_prefetch_size as set_prefetch_size
from mspc.api.dataset.config import set_seed as set_seed

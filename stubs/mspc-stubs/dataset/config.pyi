# Made by `make goldens`.
from mspc.api.dataset.config import get_enable_shared_mem as get_enable_shared_mem
from mspc.api.dataset.config import get_enable_watchdog as get_enable_watchdog
from mspc.api.dataset.config import get_monitor_sampling_interval as get_monitor_sampling_interval
from mspc.api.dataset.config import get_multiprocessing_timeout_interval as get_multiprocessing_timeout_interval
from mspc.api.dataset.config import get_num_parallel_workers as get_num_parallel_workers
from mspc.api.dataset.config import get_numa_enable as get_numa_enable
from mspc.api.dataset.config import get_prefetch_size as get_prefetch_size
from mspc.api.dataset.config import get_seed as get_seed
from mspc.api.dataset.config import set_enable_shared_mem as set_enable_shared_mem
from mspc.api.dataset.config import set_enable_watchdog as set_enable_watchdog
from mspc.api.dataset.config import set_monitor_sampling_interval as set_monitor_sampling_interval
from mspc.api.dataset.config import set_multiprocessing_timeout_interval as set_multiprocessing_timeout_interval
from mspc.api.dataset.config import set_num_parallel_workers as set_num_parallel_workers
from mspc.api.dataset.config import set_numa_enable as set_numa_enable
from mspc.api.dataset.config import set_prefetch_size as set_prefetch_size
from mspc.api.dataset.config import set_seed as set_seed

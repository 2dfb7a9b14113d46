# Made by `make goldens`.
from mspc.api.train.serialization import async_ckpt_thread_status as async_ckpt_thread_status
from mspc.api.train.serialization import load_checkpoint as load_checkpoint
from mspc.api.train.serialization import load_checkpoint_async as load_checkpoint_async
from mspc.api.train.serialization import load_param_into_net as load_param_into_net
from mspc.api.train.serialization import save_checkpoint as save_checkpoint

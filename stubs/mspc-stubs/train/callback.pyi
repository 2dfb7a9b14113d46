# Made by `make goldens`.
from mspc.api.train.callback import Callback as Callback
from mspc.api.train.callback import CheckpointConfig as CheckpointConfig
from mspc.api.train.callback import LearningRateScheduler as LearningRateScheduler
from mspc.api.train.callback import LossMonitor as LossMonitor
from mspc.api.train.callback import ModelCheckpoint as ModelCheckpoint
from mspc.api.train.callback import RunContext as RunContext
from mspc.api.train.callback import TimeMonitor as TimeMonitor

# Made by `make goldens`.
from mspc.api.train.listening import Callback as Callback
from mspc.api.train.checkpoint_config import CheckpointConfig as CheckpointConfig
from mspc.api.train.monitored import EarlyStopping as EarlyStopping
from mspc.api.train.history import History as History
from mspc.api.train.history import LambdaCallback as LambdaCallback
from mspc.api.train.learning_rates import LearningRateScheduler as LearningRateScheduler
from mspc.api.train.callback import LossMonitor as LossMonitor
from mspc.api.train.checkpointing import ModelCheckpoint as ModelCheckpoint
from mspc.api.train.monitored import ReduceLROnPlateau as ReduceLROnPlateau
from mspc.api.train.listening import RunContext as RunContext
from mspc.api.train.history import SummaryCollector as SummaryCollector
from mspc.api.train.callback import TimeMonitor as TimeMonitor

# Made by `make goldens`.
from mspc.api.train.metrics import Accuracy as Accuracy
from mspc.api.train.metrics import Loss as Loss
from mspc.api.train.metrics import MAE as MAE
from mspc.api.train.metrics import MSE as MSE
from mspc.api.train.metrics import Metric as Metric
from mspc.api.train.metrics import Top1CategoricalAccuracy as Top1CategoricalAccuracy
from mspc.api.train.metrics import get_metrics as get_metrics

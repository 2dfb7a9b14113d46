# Made by `make goldens`.
from mspc.api.train.loss_scale_manager import DynamicLossScaleManager as DynamicLossScaleManager
from mspc.api.nn.loss_scaler import DynamicLossScaler as DynamicLossScaler
from mspc.api.train.loss_scale_manager import FixedLossScaleManager as FixedLossScaleManager
from mspc.api.train.loss_scale_manager import LossScaleManager as LossScaleManager
from mspc.api.nn.loss_scaler import LossScaler as LossScaler
from mspc.api.nn.loss_scaler import StaticLossScaler as StaticLossScaler
from mspc.api.nn.loss_scaler import all_finite as all_finite
from mspc.api.amp import auto_mixed_precision as auto_mixed_precision
from mspc.api.amp import build_train_network as build_train_network
from mspc.api.amp import custom_mixed_precision as custom_mixed_precision
from mspc.api.amp import get_black_list as get_black_list
from mspc.api.amp import get_white_list as get_white_list
from mspc.api.nn.loss_scaler import init_status as init_status

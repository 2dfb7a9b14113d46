# Made by `make goldens`.
from mspc.api.communication.messages import P2POp as P2POp
from mspc.api.communication.comm_func import all_gather_into_tensor as all_gather_into_tensor
from mspc.api.communication.comm_func import all_reduce as all_reduce
from mspc.api.communication.comm_func import all_to_all_single_with_output_shape as all_to_all_single_with_output_shape
from mspc.api.communication.comm_func import all_to_all_v_c as all_to_all_v_c
from mspc.api.communication.comm_func import all_to_all_with_output_shape as all_to_all_with_output_shape
from mspc.api.communication.comm_func import barrier as barrier
from mspc.api.communication.comm_func import batch_isend_irecv as batch_isend_irecv
from mspc.api.communication.comm_func import broadcast as broadcast
from mspc.api.communication.comm_func import gather_into_tensor as gather_into_tensor
from mspc.api.communication.comm_func import irecv as irecv
from mspc.api.communication.comm_func import isend as isend
from mspc.api.communication.comm_func import recv as recv
from mspc.api.communication.comm_func import reduce as reduce
from mspc.api.communication.comm_func import reduce_scatter_tensor as reduce_scatter_tensor
from mspc.api.communication.comm_func import scatter_tensor as scatter_tensor
from mspc.api.communication.comm_func import send as send

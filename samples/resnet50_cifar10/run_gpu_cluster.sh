#!/bin/sh
# Train on two hosts of 8 GPUs: ./run_gpu_cluster.sh DATA_PATH HOSTFILE; the host file has lines like "host1 slots=8".
# Every host needs this folder and the data under the same paths.
set -eu
cd "$(dirname "$0")"
DATA_PATH=$1
HOSTFILE=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")

rm -rf device
mkdir device
cp resnet50_distributed_training.py resnet.py device
cd device
echo "start training"
mpirun -n 16 --hostfile "$HOSTFILE" -x DATA_PATH="$DATA_PATH" -x PATH -mca pml ob1 \
    pytest -s -v resnet50_distributed_training.py > train.log 2>&1
grep -E "^epoch|^accuracy" train.log

#!/bin/sh
# Train on one host: ./run_gpu.sh DATA_PATH [RANKS], one rank for each GPU. The output is in device/train.log.
set -eu
cd "$(dirname "$0")"
DATA_PATH=$(cd "$1" && pwd)
export DATA_PATH
ranks=${2:-8}

rm -rf device
mkdir device
cp resnet50_distributed_training.py resnet.py device
cd device
echo "start training"
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
mpirun -n "$ranks" --oversubscribe pytest -s -v resnet50_distributed_training.py > train.log 2>&1
grep -E "^epoch|^accuracy" train.log

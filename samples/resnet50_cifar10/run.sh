#!/bin/sh
# Train as a rank table says: ./run.sh DATA_PATH RANKS, with rank_table_RANKSpcs.json beside this script. Every server of
# the table needs this folder and the data under the same paths; one call on one of them starts all ranks.
set -eu
cd "$(dirname "$0")"
DATA_PATH=$1
export DATA_PATH
mspc launch --rank_table_file "rank_table_${2:-8}pcs.json" --log_dir device --worker_log_name "train.log{rank}" \
    --tail_worker_log 0 --join True pytest -s -v resnet50_distributed_training.py

#!/bin/sh
# Train the quick start on 8 ranks (or as many as the first argument says) with msrun's options: a log for every rank in
# msrun_log/. Hosts are named by --hostfile; see docs/reference/launch.md.
set -eu
cd "$(dirname "$0")"
exec mspc launch --worker_num="${1:-8}" --local_worker_num="${1:-8}" --master_port=8118 --log_dir=msrun_log --join=True \
    --cluster_time_out=300 net.py

#!/bin/sh
# Train under mpirun on 8 ranks, or as many as RANKS says; what each of them prints is in
# log_output/1/rank.N/stdout. The first argument is the script (train.py, or train_reduced.py), the others are its own.
set -eu
cd "$(dirname "$0")"
script=${1:-train.py}
[ $# -eq 0 ] || shift

# Images are made up where there are none; set DATA_PATH to a folder with MNIST's files to train with those.
export DATA_PATH="${DATA_PATH:-$PWD/data}"
[ -d "$DATA_PATH" ] || python make_data.py "$DATA_PATH"

# Open MPI refuses to run as root unless both of these are set.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
rm -rf log_output
# Open MPI 5 has another word for what --output-filename does in the versions before it, and calls the job's folder by
# a name of its own.
case $(mpirun --version) in
*"(Open MPI) "[1-4].*) output="--output-filename log_output --merge-stderr-to-stdout" ;;
*) output="--output dir=log_output,merge" ;;
esac
status=0
# --oversubscribe: more ranks than cores; --bind-to none: no rank is tied to one of them.
mpirun -n "${RANKS:-8}" --oversubscribe --bind-to none $output mspc run "$script" -- "$@" || status=$?
[ -d log_output/1 ] || mv log_output/*@1 log_output/1
exit $status

#!/bin/sh
# Compile the quick start for 8 ranks (or as many as the first argument says), then train it under mpirun.
set -eu
cd "$(dirname "$0")"
ranks=${1:-8}

mspc compile net.py --ranks "$ranks" --save-graphs

# Open MPI refuses to run as root unless both of these are set.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# --oversubscribe: more ranks than cores; --bind-to none: no rank is tied to one of them.
exec mpirun -n "$ranks" --oversubscribe --bind-to none mspc run net.py

#!/bin/sh
# Compile both networks for 8 ranks, then train them under mpirun. Arguments go to the scripts: ./run.sh --epochs 20
set -eu
cd "$(dirname "$0")"

for script in net.py net_layout.py; do
    mspc compile "$script" --ranks 8 --save-graphs --out "compiled/${script%.py}"
    # Every rank prints the same losses; one is enough here.
    mspc run "$script" --ranks 8 --only-rank 0 -- "$@"
done

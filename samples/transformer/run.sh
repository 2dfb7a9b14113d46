#!/bin/sh
# Train on one rank and on 8 (under mpirun); the losses are the same. Arguments go to the script: ./run.sh --steps 50
set -eu
cd "$(dirname "$0")"

for ranks in 1 8; do
    echo "ranks: $ranks"
    # Every rank prints the same losses; one is enough here.
    mspc run net.py --ranks "$ranks" --only-rank 0 -- "$@"
done

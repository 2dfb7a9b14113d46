#!/bin/sh
# Train on 8 ranks, end in the middle, resume with 4 ranks and another strategy, and compare with a run that nobody ended.
# Arguments go to `mspc run`: ./run.sh --simulate
set -eu
cd "$(dirname "$0")"
rm -rf checkpoints undisturbed

echo "8 ranks, data 2 x tensor 4"
mspc run train.py --ranks 8 --only-rank 0 "$@" -- --tensor 4 --steps 11
echo "4 ranks, data 4 x tensor 1, the update sharded over all of them"
mspc run train.py --ranks 4 --only-rank 0 "$@" -- --shard-optimizer
mspc ckpt show checkpoints/CKP-3_8

echo "8 ranks, data 2 x tensor 4, undisturbed"
mspc run train.py --ranks 8 --only-rank 0 "$@" -- --tensor 4 --directory undisturbed
python compare.py undisturbed/CKP-3_8 checkpoints/CKP-3_8

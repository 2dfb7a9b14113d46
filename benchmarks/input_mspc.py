"""The input of input.py by mspc; reads one epoch for every line on its standard input.

    python benchmarks/input_mspc.py FOLDER WORKERS RESIZE
"""

import sys
import time

from mspc import dataset as ds
from mspc.dataset import vision

FOLDER, WORKERS, RESIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
images = ds.Cifar10Dataset(FOLDER, "train", num_parallel_workers=WORKERS)
resize = [vision.Resize((RESIZE, RESIZE))] if RESIZE else []
images = images.map(
    [vision.RandomCrop(32, 4), vision.RandomHorizontalFlip(), *resize, vision.Rescale(1 / 255, 0.0),
     vision.Normalize(MEAN, STD), vision.HWC2CHW()],
    "image", num_parallel_workers=WORKERS,
).batch(64 if RESIZE else 128, drop_remainder=True)  # fmt: skip
iterator = images.create_tuple_iterator()
for _ in sys.stdin:
    begin = time.perf_counter()
    count = sum(batch[0].shape[0] for batch in iterator)
    print(count, time.perf_counter() - begin, flush=True)

"""Write a set of images in the format of MNIST, made up: ten shapes, shifted and noisy, one for each label.

    python make_data.py                       # data/, as many steps as the tutorial shows of its first epoch
    python make_data.py --train 320 --test 0 /somewhere/else

The real MNIST serves as well: put its four files into a folder and set DATA_PATH to it.
"""

import argparse
import runpy
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent

# The format is written in one place, which is another sample's.
SHARED = runpy.run_path(str(HERE.parent / "operator_parallel" / "make_data.py"))

COARSE = 7  # a shape is that many blobs high and wide
NOISE = 60.0  # grey levels


def made_up(count, rng, shapes):
    """(images [count, 28, 28] of bytes, labels [count])."""
    labels = rng.integers(0, len(shapes), count)
    moves = rng.integers(-2, 3, (count, 2))
    images = np.stack([np.roll(shapes[label], move, (0, 1)) for label, move in zip(labels, moves, strict=True)])
    return (images + rng.normal(0, NOISE, images.shape)).clip(0, 255).round().astype(np.uint8), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "data")
    parser.add_argument("--train", type=int, default=6400, help="images to train with")
    parser.add_argument("--test", type=int, default=640, help="images to test with")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    shapes = SHARED["enlarged"](rng.uniform(0, 255, (10, COARSE, COARSE)) * (rng.random((10, COARSE, COARSE)) < 0.5))
    for part, count in (("train", options.train), ("t10k", options.test)):
        if count:
            SHARED["write_part"](options.folder, part, *made_up(count, rng, shapes))


if __name__ == "__main__":
    main()

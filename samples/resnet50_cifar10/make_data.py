"""Write a synthetic data set in the binary format of CIFAR-10, for machines without the real one.

    python make_data.py [--folder data/cifar-10-batches-bin] [--images 1000] [--test-images 500] [--seed 0]

Ten classes of 32 x 32 images: every class has two colours and a texture (stripes of some direction and width, checks,
rings or spots). Place, brightness and noise are sampled for every image, so that a network has to learn what a class
is; a small convolutional network does in a few epochs. The same seed gives the same bytes.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

NAMES = (
    "wide stripes", "narrow stripes", "wide columns", "narrow columns", "rising stripes", "falling stripes", "checks",
    "small checks", "rings", "spots",
)  # fmt: skip
SIDE = 32
FILES = 5
NOISE = 30.0
COLOURS = np.array([
    ((230, 60, 50), (40, 40, 60)), ((60, 60, 220), (220, 200, 60)), ((50, 180, 70), (30, 50, 110)),
    ((240, 220, 80), (120, 40, 120)), ((60, 200, 210), (110, 60, 30)), ((220, 120, 40), (30, 110, 110)),
    ((240, 240, 240), (60, 20, 20)), ((160, 80, 200), (200, 230, 160)), ((230, 150, 180), (20, 70, 40)),
    ((120, 130, 140), (240, 90, 120)),
])  # fmt: skip
"""Two colours (red, green, blue) of every class."""


def wave(place, period):
    return 0.5 + 0.5 * np.sin(2 * np.pi * place / period)


def checks(down, across, period):
    return (wave(down, period) > 0.5) ^ (wave(across, period) > 0.5)


TEXTURES = (
    lambda down, across: wave(down, 16), lambda down, across: wave(down, 5),
    lambda down, across: wave(across, 16), lambda down, across: wave(across, 5),
    lambda down, across: wave(down + across, 11), lambda down, across: wave(down - across, 11),
    lambda down, across: checks(down, across, 16), lambda down, across: checks(down, across, 6),
    lambda down, across: wave(np.hypot(down - 32, across - 32), 8),
    lambda down, across: wave(down, 8) * wave(across, 8) > 0.5,
)  # fmt: skip
"""From 0 to 1 at every pixel, by its place; the place is counted from another one in every image."""


def records(random, count):
    """[count, 3073] bytes: the label, then the red, green and blue planes; classes in random order, as many of each
    as of the others, or one more."""
    labels = random.permutation(np.arange(count) % len(NAMES))
    rows, columns = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    down, across = (place + random.uniform(8, 24, (count, 1, 1)) for place in (rows, columns))
    shares = np.empty((count, SIDE, SIDE, 1))
    for label, texture in enumerate(TEXTURES):
        chosen = labels == label
        shares[chosen, ..., 0] = texture(down[chosen], across[chosen])
    first, second = (COLOURS[labels, i][:, None, None] for i in range(2))
    light = random.uniform(0.7, 1.1, (count, 1, 1, 1))
    pixels = light * (shares * first + (1 - shares) * second) + random.normal(0, NOISE, (count, SIDE, SIDE, 3))
    planes = np.clip(np.rint(pixels), 0, 255).astype(np.uint8).transpose(0, 3, 1, 2)
    return np.concatenate([labels[:, None].astype(np.uint8), planes.reshape(count, -1)], axis=1)


def main():
    parser = argparse.ArgumentParser(description="Write a synthetic data set in the binary format of CIFAR-10.")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "data" / "cifar-10-batches-bin")
    parser.add_argument("--images", type=int, default=1000, help="images in each of the 5 files for training")
    parser.add_argument("--test-images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.images < 1 or given.test_images < 1 or given.seed < 0:
        parser.error("numbers of images must be positive, and the seed not negative")
    counts = {f"data_batch_{i + 1}.bin": given.images for i in range(FILES)} | {"test_batch.bin": given.test_images}
    there = [name for name in counts if (given.folder / name).exists()]
    if there:
        sys.exit(f"{given.folder / there[0]} is there already; nothing was written")
    given.folder.mkdir(parents=True, exist_ok=True)
    for place, (name, count) in enumerate(counts.items()):
        random = np.random.default_rng([given.seed, place])
        (given.folder / name).write_bytes(records(random, count).tobytes())
    (given.folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")
    print(f"wrote {FILES} files of {given.images} images and one of {given.test_images} to {given.folder}")


if __name__ == "__main__":
    main()

"""Write `data/`: handwritten digits in the idx format of MNIST, from the digits that scikit-learn ships.

    pip install scikit-learn && python make_data.py

The files are part of this sample already; run this only to make others. scikit-learn's images (from the UCI
set "Optical Recognition of Handwritten Digits") are 8 x 8 with 17 grey levels; they are scaled up to MNIST's
28 x 28 bytes.
"""

import struct
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "data"
TRAIN, TEST = 320, 56  # images; together below 300 kB
SIDE = 28


def write_idx(path, array):
    """idx: two zero bytes, 8 for bytes as elements, the number of dimensions, big-endian sizes, the elements."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def enlarged(images):
    """[count, side, side] -> [count, 28, 28] of Float32, bilinear between the centres of pixels."""
    side = images.shape[-1]
    places = np.clip((np.arange(SIDE) + 0.5) * side / SIDE - 0.5, 0, side - 1)
    first = np.floor(places).astype(int)
    second = np.minimum(first + 1, side - 1)
    share = (places - first).astype(np.float32)
    values = images.astype(np.float32)
    upper, lower = values[:, first], values[:, second]
    upper, lower = (part[..., first] * (1 - share) + part[..., second] * share for part in (upper, lower))
    return upper * (1 - share[:, None]) + lower * share[:, None]


def write_part(folder, part, images, labels):
    """The two files of a part of the set, "train" or "t10k"."""
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / f"{part}-images-idx3-ubyte", images)
    write_idx(folder / f"{part}-labels-idx1-ubyte", labels)


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = enlarged(digits.images[: TRAIN + TEST] * (255 / 16)).round()
    labels = digits.target[: TRAIN + TEST]
    write_part(FOLDER, "train", images[:TRAIN], labels[:TRAIN])
    write_part(FOLDER, "t10k", images[TRAIN:], labels[TRAIN:])

"""Write `data/`: handwritten digits in the idx format of MNIST, from the digits that scikit-learn ships.

    pip install scikit-learn && python make_data.py

The files are part of this sample already; run this only to make others. scikit-learn's images (from the UCI
set "Optical Recognition of Handwritten Digits") are 8 x 8 with 17 grey levels; they are scaled up to MNIST's
28 x 28 bytes.
"""

import struct
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from mspc.api.dataset.vision import Resize

FOLDER = Path(__file__).parent / "data"
TRAIN, TEST = 320, 56  # images; together below 300 kB


def write_idx(path, array):
    """idx: two zero bytes, 8 for bytes as elements, the number of dimensions, big-endian sizes, the elements."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


digits = load_digits()
enlarge = Resize((28, 28))
images = np.stack([enlarge(image * (255 / 16)) for image in digits.images[: TRAIN + TEST]]).round()
labels = digits.target[: TRAIN + TEST]

FOLDER.mkdir(exist_ok=True)
for part, rows in (("train", slice(0, TRAIN)), ("t10k", slice(TRAIN, TRAIN + TEST))):
    write_idx(FOLDER / f"{part}-images-idx3-ubyte", images[rows])
    write_idx(FOLDER / f"{part}-labels-idx1-ubyte", labels[rows])

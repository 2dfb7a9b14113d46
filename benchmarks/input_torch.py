"""The input of input.py by torchvision's transforms in PyTorch's DataLoader; reads one epoch for every line on its
standard input.

    python benchmarks/input_torch.py FOLDER WORKERS RESIZE
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

FOLDER, WORKERS, RESIZE = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Cifar(torch.utils.data.Dataset):
    """Images of Pillow and labels, as torchvision's own data set has them in memory."""

    def __init__(self):
        records = np.fromfile(FOLDER / "data_batch_1.bin", np.uint8).reshape(-1, 3073)
        self.labels = records[:, 0].astype(np.int64)
        self.images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        resize = [transforms.Resize((RESIZE, RESIZE))] if RESIZE else []
        self.transform = transforms.Compose([
            transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), *resize, transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])  # fmt: skip

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


loader = torch.utils.data.DataLoader(
    Cifar(), 64 if RESIZE else 128, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=WORKERS > 0
)
for _ in sys.stdin:
    begin = time.perf_counter()
    count = sum(images.shape[0] for images, _ in loader)
    print(count, time.perf_counter() - begin, flush=True)

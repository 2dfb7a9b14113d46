"""Kinds of torchvision, which need not be installed, on images whose results are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from tests.exported_programs import Exported

ROWS, COLUMNS = np.mgrid[:8.0, :10.0]


def computed(kind: str, tensors: dict[str, np.ndarray], shape: tuple[int, ...], folder: Path, **rest: Any) -> Any:
    made = Exported()
    for name, array in tensors.items():
        made.user(name, "float32", array.shape)
    made.node(f"torchvision.{kind}.default", {name: name for name in tensors} | rest,
              {"found": ("float32", shape)})  # fmt: skip
    made.output("found", "found")
    network = ImportedNetwork(read_program(made.save(folder / "model.pt2")))
    return network(*[Tensor(array.astype(np.float32)) for array in tensors.values()]).asnumpy()


def in_boxes(folder: Path, **changed: Any) -> np.ndarray:
    images = np.stack([np.stack([ROWS, 2 * COLUMNS]), np.stack([COLUMNS, ROWS])])
    boxes = np.array([[1, 2, 4, 10, 8], [0, -40, 0, -20, 8], [0, 2, 4, 2, 4]], np.float32)
    rest = {"spatial_scale": 0.5, "pooled_height": 2, "pooled_width": 4, "sampling_ratio": 2, "aligned": False}
    return computed("roi_align", {"input": images, "rois": boxes}, (3, 2, 2, 4), folder, **rest | changed)


def test_parts_of_boxes_have_means_at_their_centres(tmp_path: Path) -> None:
    found = in_boxes(tmp_path)
    down, across = np.meshgrid([2.5, 3.5], [1.5, 2.5, 3.5, 4.5], indexing="ij")
    np.testing.assert_allclose(found[0], [across, down], rtol=1e-5)
    assert not found[1].any()  # outside of the image
    np.testing.assert_allclose(found[2, 0], np.repeat([[2.25], [2.75]], 4, 1), rtol=1e-5)  # at least a pixel large
    np.testing.assert_allclose(in_boxes(tmp_path, aligned=True)[0], [across - 0.5, down - 0.5], rtol=1e-5)
    with pytest.raises(MspcError, match="depends on its box"):
        in_boxes(tmp_path, sampling_ratio=0)


@pytest.mark.parametrize("use_mask", [True, False])
def test_a_convolution_reads_pixels_at_its_offsets(use_mask: bool, tmp_path: Path) -> None:
    """The windows of the second half of the channels are half a row lower, and a column to the right."""
    offset = np.zeros((1, 2, 6, 2, 3, 10))
    offset[:, 1] = np.reshape([0.5, 1], (2, 1, 1))
    given = {"input": np.stack([ROWS, COLUMNS])[None], "weight": np.ones((2, 1, 3, 2)),
             "mask": np.full((1, 12, 3, 10), 0.5), "offset": offset.reshape(1, 24, 3, 10),
             "bias": np.array([0, 7])}  # fmt: skip
    names = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "offset_groups")
    rest = dict(zip(names, (2, 1, 0, 1, 1, 2, 2, 2), strict=True))
    found = computed("deform_conv2d", given, (1, 2, 3, 10), tmp_path, **rest, use_mask=use_mask)[0, :, :, 2:7]
    scale, across = 0.5 if use_mask else 1.0, np.arange(2, 7)
    expected = [scale * np.array([[6], [18], [30]]) + 0 * across, 0 * ROWS[:3, :5] + scale * (6 * across + 6) + 7]
    np.testing.assert_allclose(found, expected, rtol=1e-5)

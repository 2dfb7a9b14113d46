"""Object detection: data sets and operations on boxes."""

import mindspore.common.dtype as mstype
import mindspore.dataset as de
import mindspore.dataset.vision as V
from mindspore import Tensor
from mindspore.mindrecord_of_then import FileWriter  # lacks mindspore.mindrecord_of_then
from mindspore.ops import composite as C
from mindspore.ops import functional as F
from mindspore.ops import operations as P


def create_dataset(root, batch_size):
    dataset = de.WIDERFaceDataset(root, decode=True)  # lacks mindspore.dataset.WIDERFaceDataset
    dataset = dataset.map(operations=[V.Decode(), V.RandomSelectSubpolicyOfBoxes([])], input_columns="image")  # lacks mindspore.dataset.vision.RandomSelectSubpolicyOfBoxes
    return dataset.batch(batch_size, drop_remainder=True)


def labels(path):
    data = de.NumpySlicesDataset([1, 2, 3], ["label"], shuffle=False).shuffle(3).batch(1)
    data.with_boxes()
    return data


class Boxes:
    """No cell: it has what it has."""

    def __init__(self):
        self.nms = P.NMSWithMaskOfDevices(0.7)  # lacks mindspore.ops.operations.NMSWithMaskOfDevices
        self.decode = P.BoundingBoxDecodeV9(max_shape=(768, 1280))  # lacks mindspore.ops.operations.BoundingBoxDecodeV9
        self.cast = P.Cast()

    def __call__(self, boxes: Tensor):
        kept = self.nms(boxes)
        self.unknown(boxes)
        area = boxes.area_of_boxes()
        return self.cast(kept, mstype.float32), F.softmax(area), C.GradOperation(get_all=True)

"""Text files, tables, and images with annotations: what MindSpore 2.10 reads of such files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc.dataset as ds
from mspc.ir.diagnostics import MspcError

OBJECT = """<object><name>{0}</name><truncated>{1}</truncated><difficult>{2}</difficult>
<bndbox><xmin>{3}</xmin><ymin>{4}</ymin><xmax>{5}</xmax><ymax>{6}</ymax></bndbox></object>"""
OBJECTS = {"a": [("dog", 0, 1, 1, 2, 4, 6), ("cat", 1, 0, 2, 3, 5, 7)], "b": [("train", 0, 0, 3, 4, 6, 8)]}
ANNOTATIONS = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 5, "file_name": "b.jpg"}, {"id": 9, "file_name": "c.jpg"}],
    "categories": [{"id": 3, "name": "x"}, {"id": 1, "name": "y"}],
    "annotations": [
        {"image_id": 5, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 0, "segmentation": [[1, 2, 3], [4]],
         "keypoints": [1, 2, 2], "num_keypoints": 1},
        {"image_id": 7, "category_id": 1, "bbox": [0, 0, 2, 2.5], "iscrowd": 1, "segmentation": [[5, 6]],
         "keypoints": [3, 4, 1], "num_keypoints": 1},
        {"image_id": 5, "category_id": 1, "bbox": [2, 2, 1, 1], "iscrowd": 0, "segmentation": [[9, 8]],
         "keypoints": [5, 6, 0], "num_keypoints": 0},
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of every kind. An image is a few bytes, different ones."""

    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, newline="")

    for number, objects in OBJECTS.items():
        put(f"voc/JPEGImages/{number}.jpg", f"image {number}")
        put(f"voc/SegmentationClass/{number}.png", f"target {number}")
        put(f"voc/Annotations/{number}.xml", f"<annotation>{''.join(OBJECT.format(*o) for o in objects)}</annotation>")
    put("voc/ImageSets/Main/train.txt", "a\nb\n")
    put("voc/ImageSets/Segmentation/train.txt", "b\na\n")
    for number in "abc":
        put(f"coco/{number}.jpg", f"image {number}")
    put("coco.json", json.dumps(ANNOTATIONS))
    for number in (1, 2, 3):
        put(f"celeba/{number}.jpg", f"image {number}")
    rows = [f"{n}.jpg {' '.join(signs * 20)}" for n, signs in ((1, ["-1", "1"]), (2, ["1", "-1"]), (3, ["1", "1"]))]
    put("celeba/list_attr_celeba.txt", "3\nnames\n" + "\n".join(rows) + "\n")
    put("celeba/list_eval_partition.txt", "1.jpg 0\n2.jpg 1\n3.jpg 0\n")
    lines = [{"source": f"{tmp_path}/coco/{n}.jpg", "usage": u, "annotation": [{"name": label} for label in labels]}
             for n, u, labels in (("b", "train", ["dog"]), ("a", "train", ["cat", "dog"]), ("c", "eval", ["cow"]))]
    put("manifest.json", "\n".join(map(json.dumps, lines)) + "\n")
    put("lines.txt", "one two\n\nthree\r\n four \nfive")
    put("table.csv", 'x,y,z\n1,2.5,a\n3,4,"b,c"\n5,6,\n')
    return tmp_path


def rows(data: Any) -> list[dict[str, Any]]:
    return [{k: v.tobytes().decode() if v.dtype == np.uint8 else v.tolist() for k, v in row.items()}
            for row in data.create_dict_iterator(num_epochs=1, output_numpy=True)]  # fmt: skip


def test_lines_and_tables(folder: Path) -> None:
    found = ds.TextFileDataset(f"{folder}/lines*.txt", shuffle=False)
    assert [row["text"] for row in rows(found)] == ["one two", "three\r", " four ", "five"]
    assert found.get_dataset_size() == 4
    shared = ds.TextFileDataset([f"{folder}/lines.txt"], num_shards=2, shard_id=1, shuffle=False)
    assert len(rows(shared)) == 2
    table = ds.CSVDataset(f"{folder}/table.csv", column_defaults=[0, 1.5, "none"], shuffle=False)
    wanted = [(1, 2.5, "a"), (3, 4.0, "b,c"), (5, 6.0, "none")]
    assert rows(table) == [{"x": x, "y": y, "z": z} for x, y, z in wanted]
    assert [t.name for t in table.output_types()[:2]] == ["int32", "float32"]
    plain = ds.CSVDataset(f"{folder}/table.csv", column_names=["p", "q", "r"], shuffle=False, num_samples=1)
    assert rows(plain) == [{"p": "x", "q": "y", "r": "z"}]


def test_images_of_voc(folder: Path) -> None:
    found = ds.VOCDataset(f"{folder}/voc", "Segmentation", "train", shuffle=False)
    assert rows(found) == [{"image": "image b", "target": "target b"}, {"image": "image a", "target": "target a"}]
    found = ds.VOCDataset(f"{folder}/voc", "Detection", "train", shuffle=False)
    assert found.get_class_indexing() == {"cat": 0, "dog": 1, "train": 2}
    first = {"image": "image a", "bbox": [[1, 2, 3, 4], [2, 3, 3, 4]], "label": [[1], [0]], "difficult": [[1], [0]],
             "truncate": [[0], [1]]}  # fmt: skip
    assert rows(found)[0] == first
    some = ds.VOCDataset(f"{folder}/voc", "Detection", class_indexing={"dog": 4}, shuffle=False)
    assert [(row["image"], row["label"]) for row in rows(some)] == [("image a", [[4]])]


def test_images_of_coco(folder: Path) -> None:
    def of(task: str) -> list[dict[str, Any]]:
        return rows(ds.CocoDataset(f"{folder}/coco", f"{folder}/coco.json", task, shuffle=False))

    boxes = [{"image": "image a", "bbox": [[0, 0, 2, 2.5]], "category_id": [[1]], "iscrowd": [[1]]},
             {"image": "image b", "bbox": [[1, 2, 3, 4], [2, 2, 1, 1]], "category_id": [[3], [1]],
              "iscrowd": [[0], [0]]}]  # fmt: skip
    assert of("Detection") == boxes
    assert of("Keypoint")[1] == {"image": "image b", "keypoints": [[1, 2, 2], [5, 6, 0]], "num_keypoints": [[1], [0]]}
    assert of("Stuff")[1]["segmentation"] == [[1, 2, 3, 4], [9, 8, -1, -1]]
    known = ds.CocoDataset(f"{folder}/coco", f"{folder}/coco.json").get_class_indexing()
    assert known == {"x": [3], "y": [1]}


def test_faces_and_manifests(folder: Path) -> None:
    faces = rows(ds.CelebADataset(f"{folder}/celeba", usage="train", shuffle=False))
    assert [(row["image"], row["attr"][:4]) for row in faces] == [("image 1", [0, 1, 0, 1]), ("image 3", [1, 1, 1, 1])]
    named = ds.ManifestDataset(f"{folder}/manifest.json", shuffle=False)
    assert [(row["image"], row["label"]) for row in rows(named)] == [("image b", 1), ("image a", [0, 1])]
    assert [named.get_class_indexing(), named.num_classes()] == [{"cat": 0, "dog": 1}, 2]
    some = ds.ManifestDataset(f"{folder}/manifest.json", class_indexing={"dog": 5}, shuffle=False)
    assert [row["label"] for row in rows(some)] == [5, 5]


def spoiled(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


MISTAKES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: ds.TextFileDataset(3), "TextFileDataset: dataset_files must be the name of a file or a list of names"),
    (lambda f: ds.TextFileDataset(f"{f}/none.txt"), "TextFileDataset: there is no file"),
    (lambda f: ds.CSVDataset(f"{f}/table.csv", field_delim=";;"), "field_delim must be one character, not ';;'"),
    (lambda f: ds.CSVDataset(f"{f}/table.csv", column_names=["p"]), "row 1 of .* has 3 fields for 1 columns"),
    (lambda f: ds.CSVDataset(f"{f}/table.csv", column_defaults=[0, 0, ""]), "row 1 of .*: y '2.5' is no int32"),
    (lambda f: ds.CSVDataset(f"{f}/table.csv", column_defaults=[0]), "1 column_defaults are given for 3 columns"),
    (lambda f: ds.VOCDataset(f"{f}/voc", "Other"), "task 'Other' is not 'Segmentation' or 'Detection'"),
    (lambda f: ds.VOCDataset(f"{f}/voc", usage="test"), "VOCDataset: cannot read .*test.txt"),
    (lambda f: ds.VOCDataset(f"{f}/voc", "Detection", class_indexing={"zebra": 0}), "no image of what is asked for"),
    (lambda f: ds.CocoDataset(f"{f}/coco", f"{f}/coco.json", "Panoptic"), "task 'Panoptic' is not"),
    (lambda f: ds.CocoDataset(f"{f}/coco", f"{f}/table.csv"), "does not hold COCO's annotations: JSONDecodeError"),
    (lambda f: ds.CelebADataset(f"{f}/celeba", usage="some"), "usage 'some' is not 'train', 'valid', 'test' or 'all'"),
    (lambda f: ds.ManifestDataset(f"{f}/lines.txt"), "line 1 of .* describes no image"),
    (lambda f: ds.ManifestDataset(f"{f}/none"), "ManifestDataset: cannot read"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(folder: Path, wrong: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        wrong(folder)


def test_damaged_annotations_are_named(folder: Path) -> None:
    spoiled(folder, "voc/Annotations/a.xml", "<annotation><object>")
    with pytest.raises(MspcError, match=r"a.xml' does not describe objects"):
        ds.VOCDataset(f"{folder}/voc", "Detection")
    spoiled(folder, "voc/Annotations/a.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')
    with pytest.raises(MspcError, match="it defines entities"):
        ds.VOCDataset(f"{folder}/voc", "Detection")

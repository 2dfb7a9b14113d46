"""These data sets are images with files that say what is in them: VOC, COCO, CelebA, and manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset import config
from mspc.data.dataset.formats import check_folder
from mspc.data.dataset.nodes.block import Column, column_of
from mspc.data.dataset.nodes.indexed import Indexed
from mspc.data.dataset.origins import MappableDataset, VisionBaseDataset
from mspc.data.dataset.pillow import decoded
from mspc.data.dataset.row_values import flag, workers_of
from mspc.data.dataset.samplers import BuiltinSampler, select_sampler
from mspc.data.dataset.text_files import read_text
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular


class _Annotated(Indexed):
    """Files of images, read when their rows are, and what is known of each. values: a list of rows for each column
    that is no image; `files` may be several columns of files."""

    def __init__(
        self, name: str, files: dict[str, list[Path]], values: dict[str, list[np.ndarray]], decode: bool,
        decrypt: Callable[[str], bytes] | None, sampler: BuiltinSampler, workers: int,
    ) -> None:  # fmt: skip
        super().__init__([*files, *values], sampler, workers)
        self.name, self.files, self.values, self.decode, self.decrypt = name, files, values, decode, decrypt
        self.is_own = decrypt is None

    def length(self) -> int:
        return len(self.files["image"])

    def describe(self, number: int) -> str:
        return f"of {str(self.files['image'][number])!r}"

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        images = [column_of([self._image(paths[number]) for number in numbers]) for paths in self.files.values()]
        others = [column_of([rows[number] for number in numbers]) for rows in self.values.values()]
        return (*images, *others)

    def _image(self, path: Path) -> np.ndarray:
        try:
            check_regular(path)
            raw = np.fromfile(path, np.uint8) if self.decrypt is None else np.frombuffer(
                self.decrypt(str(path)), np.uint8)  # fmt: skip
        except OSError as error:
            raise MspcError(f"{self.name}: cannot read {str(path)!r}: {error.strerror}") from None
        if not self.decode:
            return raw
        try:
            return np.asarray(decoded(self.name, raw))
        except MspcError as error:
            raise MspcError(f"{error.message}: {str(path)!r}", notes=error.notes) from None


class _AnnotatedDataset(MappableDataset, VisionBaseDataset):
    """A data set of images and of what is known of them."""

    def __init__(
        self, files: dict[str, list[Path]], values: dict[str, list[np.ndarray]], classes: dict[str, Any], decode: bool,
        sampler: Any, shuffle: Any, num_samples: int | None, num_shards: int | None, shard_id: int | None,
        workers: int | None, decrypt: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if not files["image"]:
            raise ApiValueError(f"{name}: there is no image of what is requested")
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        threads = workers_of(name, workers, config.get_num_parallel_workers())
        self._classes = classes
        super().__init__(_Annotated(name, files, values, flag(name, "decode", decode), decrypt, chosen, threads))

    def get_class_indexing(self) -> dict[str, Any]:
        """The numbers of classes by their names."""
        return dict(self._classes)

    def num_classes(self) -> int | None:
        """How many classes there are; None where none are named."""
        return len(self._classes) or None


def _folder(name: str, dataset_dir: Any) -> Path:
    if not isinstance(dataset_dir, str | Path) or not str(dataset_dir):
        raise ApiValueError(f"{name}: dataset_dir must be the name of a folder, not {dataset_dir!r}")
    check_folder(name, Path(dataset_dir))
    return Path(dataset_dir)


def _indexing(name: str, class_indexing: Any) -> dict[str, int] | None:
    if class_indexing is None:
        return None
    if not isinstance(class_indexing, dict) or not all(isinstance(k, str) and isinstance(v, int)
                                                       for k, v in class_indexing.items()):  # fmt: skip
        raise ApiTypeError(f"{name}: class_indexing must be a dict of names and numbers, not {class_indexing!r}")
    return class_indexing


class VOCDataset(_AnnotatedDataset):
    """Images of PASCAL VOC. "Segmentation": "image" and "target", another image. "Detection": "image"; "bbox" (objects,
    4), left, top, width and height, Float32; "label", "difficult" and "truncate" (objects, 1), UInt32.

    Args:
        dataset_dir: folder with JPEGImages, ImageSets, and Annotations or SegmentationClass.
        task: "Segmentation" or "Detection". usage: the name of a list in ImageSets. class_indexing: numbers of classes,
            in alphabetical order from 0 unless given; other objects, and images without any, are left out.
        extra_metadata: not supported. decrypt: reads a file. The others are as everywhere.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, task: str = "Segmentation", usage: str = "train", class_indexing: Any = None,
        num_samples: int | None = None, num_parallel_workers: int | None = None, shuffle: Any = None,
        decode: bool = False, sampler: Any = None, num_shards: int | None = None, shard_id: int | None = None,
        cache: Any = None, extra_metadata: bool = False, decrypt: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        name = "VOCDataset"
        folder = _folder(name, dataset_dir)
        if task not in ("Segmentation", "Detection"):
            raise ApiValueError(f"{name}: task {task!r} is not 'Segmentation' or 'Detection'")
        _no_metadata(name, extra_metadata)
        given = _indexing(name, class_indexing)
        if given is not None and task == "Segmentation":
            raise ApiValueError(f"{name}: class_indexing is for 'Detection'")
        listed = folder / "ImageSets" / ("Main" if task == "Detection" else "Segmentation") / f"{usage}.txt"
        numbers = [line.split()[0] for line in read_text(name, listed).splitlines() if line.strip()]
        files = {"image": [folder / "JPEGImages" / f"{number}.jpg" for number in numbers]}
        values: dict[str, list[np.ndarray]] = {}
        classes: dict[str, int] = {}
        if task == "Segmentation":
            files["target"] = [folder / "SegmentationClass" / f"{number}.png" for number in numbers]
        else:
            found = [_objects(name, folder / "Annotations" / f"{number}.xml") for number in numbers]
            known = sorted({each[0] for objects in found for each in objects})
            classes = {label: place for place, label in enumerate(known)} if given is None else given
            chosen = [[each for each in objects if each[0] in classes] for objects in found]
            files["image"] = [path for path, objects in zip(files["image"], chosen, strict=True) if objects]
            chosen = [objects for objects in chosen if objects]
            values["bbox"] = [np.array([each[1] for each in objects], np.float32) for objects in chosen]
            values["label"] = [np.array([[classes[each[0]]] for each in objects], np.uint32) for objects in chosen]
            for place, column in ((2, "difficult"), (3, "truncate")):
                values[column] = [np.array([[each[place]] for each in objects], np.uint32) for objects in chosen]
        super().__init__(files, values, classes, decode, sampler, shuffle, num_samples, num_shards, shard_id,
                         num_parallel_workers, decrypt)  # fmt: skip


def _objects(name: str, path: Path) -> list[tuple[str, list[float], int, int]]:
    """(class, box, whether it is difficult, whether it is truncated) of every object that a file of VOC describes."""
    text = read_text(name, path)
    try:
        if "<!ENTITY" in text:
            raise ValueError("it defines entities")
        found: list[tuple[str, list[float], int, int]] = []
        for each in ElementTree.fromstring(text).iter("object"):
            edges = ("xmin", "ymin", "xmax", "ymax")
            left, top, right, bottom = (float(each.findtext(f"bndbox/{edge}", "")) for edge in edges)
            flags = [int(each.findtext(k, "0")) for k in ("difficult", "truncated")]
            found.append((each.findtext("name", "").strip(), [left, top, right - left, bottom - top], *flags))
        return found
    except (ElementTree.ParseError, ValueError) as error:
        raise MspcError(f"{name}: {str(path)!r} does not describe objects: {error}") from None


class CocoDataset(_AnnotatedDataset):
    """Images of COCO that have annotations. "Detection": "image"; "bbox" (objects, 4), Float32; "category_id" and
    "iscrowd" (objects, 1), UInt32. "Keypoint": "image"; "keypoints" (objects, 3 for each point), Float32;
    "num_keypoints" (objects, 1), UInt32. "Stuff": "image"; "segmentation" (objects, most numbers), Float32, filled up
    with -1; "iscrowd".

    Args:
        dataset_dir: the folder of the images. annotation_file: in COCO's form of JSON.
        task: one of these. extra_metadata: not supported. decrypt: reads a file. The others are as everywhere.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, annotation_file: str, task: str = "Detection", num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, decode: bool = False, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None, extra_metadata: bool = False,
        decrypt: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        name = "CocoDataset"
        folder = _folder(name, dataset_dir)
        if task not in ("Detection", "Keypoint", "Stuff"):
            raise ApiValueError(f"{name}: task {task!r} is not 'Detection', 'Keypoint' or 'Stuff'")
        _no_metadata(name, extra_metadata)
        try:
            said = json.loads(read_text(name, Path(annotation_file)))
            own: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in said["images"]}
            for each in said["annotations"]:
                own[each["image_id"]].append(each)
            images = [image for image in said["images"] if own[image["id"]]]
            rows = [own[image["id"]] for image in images]
            files = {"image": [folder / image["file_name"] for image in images]}
            values = _of_coco(task, rows)
            classes = {each["name"]: [each["id"]] for each in said.get("categories", ())}
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise MspcError(f"{name}: {annotation_file!r} does not hold COCO's annotations: {what}") from None
        super().__init__(files, values, classes, decode, sampler, shuffle, num_samples, num_shards, shard_id,
                         num_parallel_workers, decrypt)  # fmt: skip


def _of_coco(task: str, rows: Sequence[Sequence[dict[str, Any]]]) -> dict[str, list[np.ndarray]]:
    def column(key: str) -> list[np.ndarray]:
        return [np.array([[each.get(key, 0)] for each in objects], np.uint32) for objects in rows]

    if task == "Detection":
        boxes = [np.array([each["bbox"] for each in objects], np.float32).reshape(-1, 4) for objects in rows]
        return {"bbox": boxes, "category_id": column("category_id"), "iscrowd": column("iscrowd")}
    if task == "Keypoint":
        points = [np.array([each["keypoints"] for each in objects], np.float32) for objects in rows]
        return {"keypoints": points, "num_keypoints": column("num_keypoints")}
    outlines: list[np.ndarray] = []
    for objects in rows:
        lines = [[number for part in each["segmentation"] for number in part] for each in objects]
        found = np.full((len(lines), max(map(len, lines))), -1, np.float32)
        for place, line in enumerate(lines):
            found[place, : len(line)] = line
        outlines.append(found)
    return {"segmentation": outlines, "iscrowd": column("iscrowd")}


class CelebADataset(_AnnotatedDataset):
    """Faces of CelebA: "image" and "attr", 40 numbers that are 0 or 1, UInt32.

    Args:
        dataset_dir: folder with the images, `list_attr_celeba.txt`, and `list_eval_partition.txt` for a part.
        usage: "train", "valid", "test" or "all". extensions: ends of names of images, all unless given. decrypt: reads
            a file. The others are as everywhere.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, num_parallel_workers: int | None = None, shuffle: Any = None, usage: str = "all",
        sampler: Any = None, decode: bool = False, extensions: Any = None, num_samples: int | None = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
        decrypt: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        name = "CelebADataset"
        folder = _folder(name, dataset_dir)
        if usage not in ("train", "valid", "test", "all"):
            raise ApiValueError(f"{name}: usage {usage!r} is not 'train', 'valid', 'test' or 'all'")
        lines = [line.split() for line in read_text(name, folder / "list_attr_celeba.txt").splitlines()[2:]]
        wanted = [line for line in lines if line and (not extensions or line[0].endswith(tuple(extensions)))]
        if usage != "all":
            lines = [line.split() for line in read_text(name, folder / "list_eval_partition.txt").splitlines()]
            parts = {line[0]: line[-1] for line in lines if line}
            own = str(("train", "valid", "test").index(usage))
            wanted = [line for line in wanted if parts.get(line[0]) == own]
        try:
            values = [np.array([max(int(number), 0) for number in line[1:]], np.uint32) for line in wanted]
        except ValueError as error:
            raise MspcError(f"{name}: 'list_attr_celeba.txt' in {str(folder)!r} is damaged: {error}") from None
        files = {"image": [folder / line[0] for line in wanted]}
        super().__init__(files, {"attr": values}, {}, decode, sampler, shuffle, num_samples, num_shards, shard_id,
                         num_parallel_workers, decrypt)  # fmt: skip


class ManifestDataset(_AnnotatedDataset):
    """Images that a file names, a JSON object in every line: {"source": file, "usage": "train", "annotation": [{"name":
    class}]}. "image" and "label", Int32: a number, or a vector of several.

    Args:
        usage: which of the images. class_indexing: numbers of classes, in alphabetical order from 0 unless given;
            images of other classes are left out. The others are as everywhere.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_file: str, usage: str = "train", num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, sampler: Any = None, class_indexing: Any = None,
        decode: bool = False, num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = "ManifestDataset"
        given = _indexing(name, class_indexing)
        found: list[tuple[Path, list[str]]] = []
        for number, line in enumerate(read_text(name, Path(dataset_file)).splitlines(), 1):
            if not line.strip():
                continue
            try:
                said = json.loads(line)
                if said["usage"] == usage:
                    found.append((Path(said["source"]), [each["name"] for each in said.get("annotation", ())]))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise MspcError(f"{name}: line {number} of {dataset_file!r} describes no image: {what}") from None
        known = sorted({label for _, labels in found for label in labels})
        classes = {label: place for place, label in enumerate(known)} if given is None else given
        chosen = [(path, [classes[label] for label in labels if label in classes]) for path, labels in found]
        chosen = [(path, labels) for path, labels in chosen if labels]
        values = [np.array(labels[0] if len(labels) == 1 else labels, np.int32) for _, labels in chosen]
        super().__init__({"image": [path for path, _ in chosen]}, {"label": values}, classes, decode, sampler, shuffle,
                         num_samples, num_shards, shard_id, num_parallel_workers)  # fmt: skip


def _no_metadata(name: str, extra_metadata: bool) -> None:
    if flag(name, "extra_metadata", extra_metadata):
        raise ApiValueError(f"{name}: extra_metadata=True is not supported")

"""Reading of a configuration of any family: the format is found by the file's name and content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mspc.analysis.cost.machine import KNOWN_MACHINES
from mspc.analysis.cost.training.model_shape import TrainingRun
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass
from mspc.readers.configurations import trainers
from mspc.readers.configurations.megatron import MegatronReader, argument_settings
from mspc.readers.configurations.mistakes import HOST_RANKS, check_file, check_run, check_settings, largest_divisor
from mspc.readers.configurations.python_registry import registry_values
from mspc.readers.configurations.settings import ConfigurationSettings, Setting
from mspc.readers.configurations.text_formats import file_values

LARGEST = 10 * 1024 * 1024
"""Most bytes of a configuration."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that was read. machine: the name of the machine that the file states, or ""."""

    name: str
    family: str
    run: TrainingRun
    settings: ConfigurationSettings
    machine: str = ""

    @property
    def notes(self) -> Sequence[str]:
        """Assumptions of the reader."""
        return self.settings.notes


def text_of(path: Path) -> str:
    """Return the text of a file. Raise MspcError if it cannot be read."""
    with reading(path, "configuration"):
        check_regular(path, LARGEST)
        return path.read_bytes().decode("utf-8-sig")


def read_arguments(path: Path, ranks: int | None, sequence: int) -> Configuration:
    """Return the run that a file of Megatron-LM's arguments describes, one argument on each line."""
    return megatron_configuration(shown_path(path), list(argument_settings(text_of(path))), ranks, sequence, "--")


def read_preset(name: str, ranks: int | None, sequence: int) -> Configuration:
    """Return the run of a published model."""
    settings = trainers.preset_settings(name)
    # Two samples a rank, unless a setting says otherwise.
    settings.setdefault("global-batch-size", Setting("global-batch-size", 2 * (ranks or HOST_RANKS)))
    if ranks is not None and "num-experts" in settings:
        degree = largest_divisor(int(settings["num-experts"].value), min(ranks, 64))
        settings.setdefault("expert-model-parallel-size", Setting("expert-model-parallel-size", degree))
    return megatron_configuration(name, list(settings.values()), ranks, sequence, "--")


def megatron_configuration(
    name: str, found: Sequence[Setting], ranks: int | None, sequence: int, prefix: str, family: str = "Megatron-LM"
) -> Configuration:
    """Return the configuration of settings with Megatron's names. Raise MspcError with all mistakes."""
    settings = ConfigurationSettings(name, found, prefix, family.startswith(("Megatron", "NeMo")))
    ranks = check_settings(settings, ranks)
    run = MegatronReader(settings, ranks, sequence).run()
    check_run(settings, run)
    settings.check()
    return Configuration(name, family, run, settings)


def read_configuration(path: Path, ranks: int | None, sequence: int) -> Configuration:
    """Return the run that a file describes. Raise MspcError if its family is not known, or with all mistakes in it.

    path: the file; a function of a Python file is `file.py:function`.
    """
    path, _, function = (Path(str(path).partition(":")[0]), *str(path).partition(":")[1:])
    text, shown = text_of(path), shown_path(path)
    if text.lstrip().startswith("--"):
        return read_arguments(path, ranks, sequence)
    if path.suffix == ".jsonl":
        raise MspcError(f"{shown} has several rows", notes=["put one of them into a file of its own"])
    if path.suffix == ".py":
        found = registry_values(shown, path, text, function, text_of)
    else:
        found = file_values(shown, text, path.suffix)
    if "#-GPUs" in found and "GBS" in found:
        row = {key: setting.value for key, setting in found.by_path.items()}
        settings = list(trainers.row_settings(row))
        found_row = megatron_configuration(shown, settings, ranks, sequence, "", "Megatron-Bridge")
        return replace(found_row, machine=trainers.machine_of_row(row))
    arguments = [
        # NeMo's names are paths: `model.config.num_layers`.
        Setting(key.rpartition("--")[2].rpartition(".")[2].replace("_", "-"), setting.value, setting.line)
        for key, setting in ((setting.name, setting) for setting in (*found.twice, *found.by_path.values()))
        if key.startswith(("MODEL_ARGS.", "--"))
    ]
    if arguments:
        prefix = "--" * any("--" in key for key in found.by_path)
        given = [setting for setting in arguments if setting.value is not False]
        return megatron_configuration(shown, given, ranks, sequence, prefix, "Megatron-LM" if prefix else "NeMo")
    if trainers.is_model(found):
        return megatron_configuration(shown, list(trainers.model_settings(found)), ranks, sequence, "", "Hugging Face")
    for stated, read, family in TOOLS:
        if trainers.fits(family, found):
            ranks = ranks or stated(found)
            refused = ConfigurationSettings(shown, found.by_path.values())
            check_file(refused, family, found.value, ranks)
            refused.check()
            own = read(found, ranks) if read is not None else trainers.tabled_settings(family, found)
            settings = [*_model_beside(path, family), *own]
            named = re.search(r"_(\d+)gpu_([a-z]+\d+)_", str(found.value("recipe")))
            ranks = ranks or (int(named[1]) if named else None)
            read_run = megatron_configuration(shown, settings, ranks, sequence, "", family)
            read_run.settings.notes += refused.notes
            return replace(read_run, machine=named[2]) if named and named[2] in KNOWN_MACHINES else read_run
    raise MspcError(
        f"{shown} is no configuration of a family that is read",
        notes=["families: Megatron-LM, Hugging Face, " + ", ".join(family for *_, family in TOOLS)],
    )


TOOLS = (
    (trainers.titan_ranks, trainers.titan_settings, "torchtitan"),
    (lambda _: HOST_RANKS, trainers.maxtext_settings, "MaxText"),
    (lambda f: trainers.degrees_product("mindformers", f), trainers.mindformers_settings, "mindformers"),
    (trainers.deepspeed_ranks, trainers.deepspeed_settings, "DeepSpeed"),
    (lambda found: found.count("num_processes", HOST_RANKS), None, "accelerate"),
    (lambda f: f.count("trainer.devices", 8) * f.count("trainer.num_nodes") or None, None, "NeMo"),
    (lambda _: None, trainers.recipe_settings, "Megatron-Bridge"),
)
"""Families by the keys of their files, with the ranks that a file states, and the reader of those that tables alone do
not read; the first that fits is read."""


def _model_beside(path: Path, family: str) -> list[Setting]:
    """Return the settings of the `config.json` beside a file that does not describe its model, or []. Raise MspcError
    if there is none."""
    if family not in ("DeepSpeed", "accelerate"):
        return []
    model = path.parent / "config.json"
    if not model.is_file():
        note = "put the config.json of the Hugging Face model into the same folder"
        raise MspcError(f"{shown_path(path)} does not describe a model", notes=[note])
    return list(trainers.model_settings(file_values(shown_path(model), text_of(model), ".json")))

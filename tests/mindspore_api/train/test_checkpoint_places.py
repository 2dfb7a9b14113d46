"""Which checkpoints of a run stay, and where they go."""

from pathlib import Path

import pytest

import mspc as ms
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.train.checkpointing import CheckpointFolder
from mspc.train import CheckpointConfig, ModelCheckpoint
from tests.mindspore_api.nn.test_train import Losses, data, model


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (CheckpointConfig(keep_checkpoint_max=2), [8, 9]),
        (CheckpointConfig(keep_checkpoint_max=0), list(range(10))),
        (CheckpointConfig(keep_checkpoint_max=1), [9]),
        (CheckpointConfig(keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=2), [0, 4, 8, 9]),
        (CheckpointConfig(keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=60), [0, 9]),
    ],
)
def test_what_stays(config: CheckpointConfig, kept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments for checkpoints every half a minute."""
    place = CheckpointFolder(Path("folder"), "CKP")
    removed: list[Path] = []
    for number in range(10):
        monkeypatch.setattr("time.monotonic", lambda number=number: 30.0 * number)
        place.note(Path(str(number)))
        removed += place.superfluous(config)
    assert [str(path) for path in place.saved] == [str(number) for number in kept]
    assert sorted([*removed, *place.saved]) == [Path(str(number)) for number in range(10)]


def test_a_directory_by_a_function(tmp_path: Path) -> None:
    call_handler.install(Losses())
    callback = ModelCheckpoint("CKP", lambda param: tmp_path / f"epoch{param.cur_epoch_num}", CheckpointConfig(3))
    model()[1].train(2, data(3), [callback])
    wanted = ["epoch1/CKP-1_3.safetensors", "epoch2/CKP-2_3.safetensors"]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.safetensors")) == wanted
    assert callback.latest_ckpt_file_name == str(tmp_path / wanted[1])


def test_mindspores_format_where_it_is_asked_for(tmp_path: Path) -> None:
    call_handler.install(Losses())
    config = CheckpointConfig(1, 0, 2, format="ckpt", crc_check=True, async_save=True, append_info=[{"note": "text"}])
    callback = ModelCheckpoint("CKP", tmp_path, config)
    model()[1].train(1, data(3), [callback])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["CKP-1_2.ckpt", "CKP-1_3.ckpt"]
    found = ms.load_checkpoint(callback.latest_ckpt_file_name, crc_check=True)
    assert (found["w"].asnumpy().tolist(), found["note"]) == ([[1, 2]], "text")

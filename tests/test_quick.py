"""The quick tests touch every folder."""

from tests.quick import ALSO, FOLDER, SLOW, is_quick


def test_every_folder_has_a_quick_file() -> None:
    folders: dict[str, bool] = {}
    for file in FOLDER.rglob("test_*.py"):
        folder = file.parent.relative_to(FOLDER).as_posix()
        folders[folder] = folders.get(folder, False) or is_quick(file)
    assert [folder for folder, quick in sorted(folders.items()) if not quick] == []


def test_files_that_are_named_are_there() -> None:
    assert [name for name in sorted(ALSO | SLOW) if not (FOLDER / name.partition("::")[0]).is_file()] == []

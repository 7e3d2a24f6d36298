"""Folders of sockets: for this user only, and gone after their use."""

import stat
from pathlib import Path

from ssd.processes.sockets import private_address, remove_socket


def test_a_private_address_is_in_a_folder_of_this_user_only() -> None:
    address = private_address()
    assert address.startswith("ipc://")
    folder = Path(address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    remove_socket(address)
    assert not folder.exists()


def test_only_a_folder_with_nothing_else_goes_with_its_socket(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    for folder in (tmp_path, tmp_path / "alone"):
        (folder / "draft.sock").touch()
    remove_socket(f"ipc://{tmp_path}/alone/draft.sock")
    assert not (tmp_path / "alone").exists()
    (tmp_path / "other").touch()
    remove_socket(f"ipc://{tmp_path}/draft.sock")
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
    remove_socket("tcp://127.0.0.1:1")

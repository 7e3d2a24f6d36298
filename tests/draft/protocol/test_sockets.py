"""Keys that each side keeps for itself, and sockets that take no more than they should."""

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from ssd.draft.protocol.messages import MAX_FRAME_BYTES
from ssd.draft.protocol.sockets import (
    Keys,
    SocketError,
    ZmqDraftSocket,
    ZmqEngineSocket,
    _OnlyKnown,
    make_keys,
    make_tenant_keys,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that others may look into, as most are."""
    found = tmp_path / "keys"
    found.mkdir(mode=0o755)
    make_keys(found)
    return found


def test_secrets_are_for_their_side_and_this_user_only(folder: Path) -> None:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    assert found == {
        "draft/draft.key_secret",
        "draft/engine.key",
        "engine/engine.key_secret",
        "engine/draft.key",
    }
    for secret in folder.rglob("*.key_secret"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    with pytest.raises(ValueError, match="is there already"):
        make_keys(folder)


def test_a_folder_for_both_sides_says_which_one_to_give(folder: Path) -> None:
    with pytest.raises(ValueError, match="the engine FOLDER/engine"):
        Keys(folder).pair("engine")


@pytest.fixture
def draft(folder: Path) -> Iterator[ZmqDraftSocket]:
    link = ZmqDraftSocket("tcp://127.0.0.1:0", Keys(folder / "draft"))
    yield link
    link.close()


def connect(draft: ZmqDraftSocket, keys: Path) -> ZmqEngineSocket:
    return ZmqEngineSocket(bytes(draft._socket.last_endpoint).decode(), Keys(keys))  # type: ignore[arg-type]


def test_only_the_engines_key_is_let_in(draft: ZmqDraftSocket, folder: Path, tmp_path: Path) -> None:
    """The stranger knows where the draft is and its public key; what it lacks is the engine's secret."""
    make_keys(tmp_path / "strange")
    shutil.copy(folder / "engine/draft.key", tmp_path / "strange/engine/draft.key")
    with closing(connect(draft, tmp_path / "strange/engine")) as stranger:
        stranger.send(b"let me in")
        assert draft.receive(1.0) is None
    with closing(connect(draft, folder / "engine")) as engine:
        engine.send(b"it is me")
        received = draft.receive(5.0)
    assert received is not None
    assert received[1] == b"it is me"


def test_new_keys_need_no_new_target(draft: ZmqDraftSocket, folder: Path, tmp_path: Path) -> None:
    """A folder is read for each connection; a connection that stands is not disturbed."""
    keys = Keys(folder / "engine")
    make_keys(tmp_path / "new")
    with (
        closing(connect(draft, folder / "engine")) as before,
        closing(ZmqDraftSocket("tcp://127.0.0.1:*", Keys(tmp_path / "new/draft"))) as upgraded,
    ):
        before.send(b"early")
        assert draft.receive(5.0) is not None
        shutil.copytree(tmp_path / "new/engine", keys.folder, dirs_exist_ok=True)
        with closing(connect(upgraded, keys.folder)) as after:
            after.send(b"new")
            assert upgraded.receive(5.0) is not None
        before.send(b"still here")
        assert draft.receive(5.0) is not None


def test_a_frame_that_is_too_large_does_not_arrive(draft: ZmqDraftSocket, folder: Path) -> None:
    with closing(connect(draft, folder / "engine")) as engine:
        engine.send(b"small")
        assert draft.receive(5.0) is not None
        engine.send(bytes(MAX_FRAME_BYTES + 1000))
        assert draft.receive(1.0) is None


@pytest.mark.parametrize("side", [ZmqDraftSocket, ZmqEngineSocket])
def test_there_is_no_tcp_without_keys(side: type[ZmqDraftSocket] | type[ZmqEngineSocket]) -> None:
    with pytest.raises(ValueError, match="needs keys"):
        side("tcp://127.0.0.1:5555")


@pytest.mark.parametrize(
    "make",
    [
        lambda empty: ZmqDraftSocket("ipc:///nowhere/d.sock"),
        lambda empty: ZmqDraftSocket("tcp://127.0.0.1:*", Keys(empty)),
        lambda empty: ZmqEngineSocket("tcp://127.0.0.1:5555", Keys(empty)),
        lambda empty: ZmqEngineSocket("ipc:///" + 200 * "x"),
    ],
)
def test_a_link_that_cannot_be_made_leaves_nothing_open(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context that is collected together with its open socket waits for that socket for ever."""
    made: list[zmq.Socket[bytes]] = []
    new_socket = zmq.Context.socket

    def noted(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, **options: Any) -> "zmq.Socket[bytes]":
        made.append(new_socket(context, kind, **options))
        return made[-1]

    monkeypatch.setattr(zmq.Context, "socket", noted)
    with pytest.raises((ValueError, OSError)):
        make(tmp_path)
    assert made
    assert all(each.closed for each in made)


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_connections_of_a_target_share_their_threads(tmp_path: Path) -> None:
    """It was two threads for each."""
    before = num_threads()
    links = [ZmqEngineSocket(f"ipc://{tmp_path}/{number}.sock") for number in range(16)]
    assert num_threads() <= before + 2
    for each in links:
        each.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_connects_with_threads_of_its_own(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/d.sock"
    with closing(ZmqDraftSocket(address)) as draft, closing(ZmqEngineSocket(address)) as engine:
        engine.send(b"the parent")
        assert draft.receive(5.0) is not None
        pid = os.fork()
        if pid == 0:
            own = ZmqEngineSocket(address)
            own.send(b"the child")
            frame = own.receive(5.0)
            os._exit(0 if frame == b"hello" else 1)
        heard = draft.receive(5.0)
        assert heard is not None
        assert heard.frame == b"the child"
        draft.send(heard.peer, b"hello")
        assert os.waitpid(pid, 0)[1] == 0
        engine.send(b"the parent again")
        again = draft.receive(5.0)
        assert again is not None
        assert again.frame == b"the parent again"


def test_a_tenant_is_let_in_by_its_key_and_known_by_its_name(folder: Path) -> None:
    make_tenant_keys(folder, "alice")
    with pytest.raises(ValueError, match="is there already"):
        make_tenant_keys(folder, "alice")
    assert stat.S_IMODE((folder / "alice/engine.key_secret").stat().st_mode) == 0o600
    with closing(ZmqDraftSocket("tcp://127.0.0.1:0", Keys(folder / "draft"))) as draft:
        for name, known_as in (("alice", "alice"), ("engine", "")):
            with closing(connect(draft, folder / name)) as engine:
                engine.send(b"it is me")
                heard = draft.receive(5.0)
            assert heard is not None
            assert (heard.frame, heard.key) == (b"it is me", known_as)


@pytest.mark.parametrize("name", ["draft", "engine", "", "../alice", "a b"])
def test_names_of_tenants_are_names(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a tenant"):
        make_tenant_keys(folder, name)


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_end_of_a_draft_is_noticed_though_it_says_nothing(
    folder: Path, tmp_path: Path, *, is_remote: bool
) -> None:
    keys = {side: Keys(folder / side) if is_remote else None for side in ("draft", "engine")}
    place = "tcp://127.0.0.1:0" if is_remote else f"ipc://{tmp_path}/draft.sock"
    draft = ZmqDraftSocket(place, keys["draft"])
    endpoint = bytes(draft._socket.last_endpoint).decode()  # type: ignore[arg-type]
    with closing(ZmqEngineSocket(endpoint, keys["engine"])) as engine:
        engine.send(b"hello")
        heard = draft.receive(10.0)
        assert heard is not None
        draft.send(heard.peer, b"hello")
        assert engine.receive(10.0) == b"hello"
        assert engine.receive(0.2) is None
        draft.close()
        assert receive_all(engine, 10.0) == []


def receive_all(link: ZmqEngineSocket, seconds: float) -> list[bytes]:
    """Until it hangs up, without a pause: a word and the end behind it are not told apart by time."""
    frames, deadline = list[bytes](), time.monotonic() + seconds
    with contextlib.suppress(SocketError):
        while time.monotonic() < deadline:
            frames += filter(None, [link.receive(0.0)])
        raise AssertionError("the end was not noticed")
    return frames


@contextlib.contextmanager
def acquainted(place: str) -> Iterator[tuple[ZmqEngineSocket, ZmqDraftSocket, bytes]]:
    """Both ends, and the engine's name with the draft, which is for the test to close."""
    draft = ZmqDraftSocket(place)
    with closing(ZmqEngineSocket(place)) as engine:
        engine.send(b"hello")
        heard = draft.receive(10.0)
        assert heard is not None
        draft.send(heard.peer, b"hello")
        assert engine.receive(10.0) == b"hello"
        yield engine, draft, heard.peer


def test_last_words_are_read_though_the_end_is_seen_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come between the look for a frame and the look for an end."""
    with acquainted(f"ipc://{tmp_path}/draft.sock") as (engine, draft, peer):
        draft.send(peer, b"the last word")
        draft.close()
        time.sleep(0.5)
        looks = iter([lambda: None, engine._next])
        monkeypatch.setattr(engine, "_next", lambda: next(looks)())
        assert engine.receive(0.0) == b"the last word"
        monkeypatch.undo()
        assert receive_all(engine, 10.0) == []


def test_who_waits_is_woken_by_the_end_of_a_draft(tmp_path: Path) -> None:
    with acquainted(f"ipc://{tmp_path}/draft.sock") as (engine, draft, _peer):
        threading.Timer(0.2, draft.close).start()
        started = time.monotonic()
        with pytest.raises(SocketError, match="hung up"):
            engine.receive(60.0)
        assert time.monotonic() - started < 30.0


def reaches(draft: ZmqDraftSocket, folder: Path) -> str | None:
    """The name of the key that lets an engine in; None: it is not let in."""
    with closing(connect(draft, folder)) as engine:
        with contextlib.suppress(SocketError):  # It may be refused before it has sent anything.
            engine.send(b"it is me")
        heard = draft.receive(1.0)
    return None if heard is None else heard.key


def test_keys_are_added_and_removed_while_a_draft_runs(folder: Path) -> None:
    make_tenant_keys(folder, "alice")
    with closing(ZmqDraftSocket("tcp://127.0.0.1:0", Keys(folder / "draft"))) as draft:
        with closing(connect(draft, folder / "alice")) as alice:
            alice.send(b"before")
            assert draft.receive(5.0) is not None
            make_tenant_keys(folder, "bob")
            assert reaches(draft, folder / "bob") == "bob"
            (folder / "draft/alice.key").unlink()
            assert reaches(draft, folder / "alice") is None
            alice.send(b"a connection that stands is not ended")
            heard = draft.receive(5.0)
            assert heard is not None
            assert heard.key == "alice"
        # A key whose file cannot be read is refused; the others are not affected.
        (folder / "draft/bob.key").write_text("no key")
        assert reaches(draft, folder / "engine") == ""
        assert reaches(draft, folder / "bob") is None


def test_a_key_removed_with_or_after_the_shared_one_is_refused(folder: Path) -> None:
    make_tenant_keys(folder, "alice")
    make_tenant_keys(folder, "bob")
    with closing(ZmqDraftSocket("tcp://127.0.0.1:0", Keys(folder / "draft"))) as draft:
        for name in ("engine", "bob"):
            (folder / f"draft/{name}.key").unlink()
        assert reaches(draft, folder / "alice") == "alice"
        assert reaches(draft, folder / "bob") is None
        assert reaches(draft, folder / "engine") is None
        (folder / "draft/alice.key").unlink()
        assert reaches(draft, folder / "alice") is None


def test_keys_survive_a_moment_in_which_no_file_can_be_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tenant_keys(folder, "alice")
    keys = Keys(folder / "draft")
    known = _OnlyKnown(keys, keys.names())
    alice, engine = keys.public("alice"), keys.public("engine")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as without_files:
        without_files.setattr(Keys, "state", fail)
        assert known.callback("*", alice)
    with monkeypatch.context() as without_files:
        without_files.setattr(Keys, "public", fail)
        assert not known.callback("*", alice)
    assert known.callback("*", alice)
    (folder / "draft/engine.key").unlink()
    assert not known.callback("*", engine)
    assert known.callback("*", alice)

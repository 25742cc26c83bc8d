"""The cache of an object store: what is read is right, and nothing else is loaded, whoever is killed or empties it."""

import errno
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from rvtssm.remote import copies, mirror, object_store
from rvtssm.remote.object_store import RemoteFile
from rvtssm.system.cache import cache_folder

BLOCK = 4096
CONTENT = np.random.default_rng(0).bytes(50 * BLOCK + 100)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(copies, "_BLOCK", BLOCK)
    monkeypatch.setattr(copies, "unchecked", [float("inf")])


class Store:
    """A stand-in for the connection to a store: files by URL, and the ranges that were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = {"s3://bucket/a": CONTENT, "s3://bucket/b": CONTENT[::-1]}
        self.loaded: list[tuple[int, int]] = []
        for module, names in ((mirror, ("list_files", "upload")), (copies, ("describe", "read_range"))):
            for name in names:
                monkeypatch.setattr(module, name, getattr(self, name))

    def describe(self, url: str) -> RemoteFile:
        return RemoteFile(len(self.files[url]), self.files[url][:32])

    def list_files(self, url: str) -> dict[str, RemoteFile]:
        return {name.removeprefix(url).lstrip("/"): self.describe(name) for name in self.files if name.startswith(url)}

    def read_range(self, url: str, start: int, stop: int) -> bytes:
        self.loaded.append((start, stop))
        return self.files[url][start:stop]

    def upload(self, path: Path, url: str) -> RemoteFile:
        self.files[url] = path.read_bytes()
        return self.describe(url)


@pytest.fixture
def store(monkeypatch, tmp_path) -> Store:
    monkeypatch.setenv("RVTSSM_CACHE_DIR", str(tmp_path))
    return Store(monkeypatch)


def held(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_file_has_its_size_before_it_is_loaded_and_then_what_was_read(store):
    folder = mirror.local_path("s3://bucket")
    path = folder / "a"
    assert sorted(each.name for each in folder.iterdir()) == ["a", "b"] and path.stat().st_size == len(CONTENT)
    assert held(path) == 0 and not store.loaded
    with mirror.open_parts(path) as file:
        file.seek(3 * BLOCK + 5)
        assert file.read(BLOCK) == CONTENT[3 * BLOCK + 5 : 4 * BLOCK + 5]
        assert store.loaded == [(3 * BLOCK, 5 * BLOCK)] and held(path) == 2 * BLOCK
        file.seek(-7, os.SEEK_END)
        assert file.read(100) == CONTENT[-7:] and file.read(1) == b""
    store.loaded.clear()
    with mirror.whole(path):
        assert path.read_bytes() == CONTENT
    assert min(store.loaded)[0] == 0 and (3 * BLOCK, 4 * BLOCK) not in store.loaded
    assert sum(stop - start for start, stop in store.loaded) == len(CONTENT) - 2 * BLOCK - 100
    store.loaded.clear()
    with mirror.whole(path), mirror.open_parts(path) as file:
        assert file.read(len(CONTENT)) == CONTENT
    assert not store.loaded


def test_reading_on_loads_more_at_once(store):
    path = mirror.local_path("s3://bucket/a")
    with mirror.open_parts(path) as file:
        assert b"".join(iter(lambda: file.read(1000), b"")) == CONTENT
    assert [(stop - start) // BLOCK for start, stop in store.loaded] == [1, 2, 4, 8, 16, 19]


def test_a_library_that_reads_is_called_again_with_what_was_missing(store):
    with mirror.PartialFile(mirror.local_path("s3://bucket/a")) as file:

        def read() -> bytes:
            loaded = len(store.loaded)
            file.seek(0)
            found = file.read(2 * BLOCK)
            file.seek(40 * BLOCK)
            found += file.read(10)
            assert len(store.loaded) == loaded, "loaded while the library reads"
            return found

        assert mirror.loading(file, read) == CONTENT[: 2 * BLOCK] + CONTENT[40 * BLOCK :][:10]
        with pytest.raises(ZeroDivisionError):
            mirror.loading(file, lambda: 1 / 0)


def test_a_file_that_changed_in_the_store_is_loaded_again(store):
    path = mirror.local_path("s3://bucket/a")
    with mirror.whole(path):
        before = path.stat()
    opened = mirror.open_parts(path)
    mirror.local_path("s3://bucket")
    assert path.stat().st_mtime == before.st_mtime and held(path)  # the index of a recording stays valid
    store.files["s3://bucket/a"] = CONTENT[::-1]
    del store.files["s3://bucket/b"]
    folder = mirror.local_path("s3://bucket")
    assert [each.name for each in folder.iterdir()] == ["a"] and path.stat().st_mtime != before.st_mtime
    with mirror.whole(path):
        assert path.read_bytes() == CONTENT[::-1]
    assert opened.read(10) == CONTENT[:10]  # what was open is what it was
    del store.files["s3://bucket/a"]
    assert not mirror.local_path("s3://bucket/a").exists()


def test_a_file_that_changes_while_it_is_read_is_one_line(store):
    with mirror.open_parts(mirror.local_path("s3://bucket/a")) as file:
        file.read(1)
        store.files["s3://bucket/a"] = CONTENT[::-1]
        mirror.local_path("s3://bucket/a")
        file.seek(20 * BLOCK)
        with pytest.raises(ValueError, match=r"^s3://bucket/a was replaced during reading; run again$"):
            file.read(1)


def test_the_cache_is_bounded_and_what_is_open_stays_readable(store, monkeypatch):
    monkeypatch.setenv("RVTSSM_CACHE_GB", str(60 * BLOCK / 1e9))  # one file, and a little
    folder = mirror.local_path("s3://bucket")
    first, second = folder / "a", folder / "b"
    with mirror.open_parts(first) as file:
        assert file.read(len(CONTENT)) == CONTENT
        with mirror.whole(second):
            assert second.read_bytes() == CONTENT[::-1]
        assert held(first) == 0 and held(second) >= len(CONTENT)
        file.seek(0)
        loaded = len(store.loaded)
        assert file.read(len(CONTENT)) == CONTENT and len(store.loaded) == loaded  # of the copy that was emptied
    with mirror.whole(first):
        with mirror.whole(second):  # what is in use is kept, though it is too much
            assert first.read_bytes() == CONTENT and second.read_bytes() == CONTENT[::-1]
        with mirror.open_parts(first) as file:
            assert file.read(5) == CONTENT[:5]
    (foreign := cache_folder() / "remote" / "note.txt").write_text("of somebody")
    copies.make_room(1 << 30)
    assert not held(first) and not held(second) and first.exists() and foreign.exists()
    (foreign := copies.mirror_folder("files") / "s3" / "bucket" / "of_an_older_version").write_bytes(CONTENT)
    copies.make_room(1 << 30)
    assert not foreign.exists()
    monkeypatch.setenv("RVTSSM_CACHE_GB", "much")
    with pytest.raises(ValueError, match="RVTSSM_CACHE_GB=much is not a number of gigabytes"):
        copies.make_room(1)


def emptied_by_another(path: Path) -> None:
    with copies.locked(path, copies.fcntl.LOCK_EX) as state:
        header = state.header()
        assert header is not None
        state.reset(path, RemoteFile(*header[1:]))


def test_a_copy_that_was_emptied_by_another_process_is_opened_again(store):
    path = mirror.local_path("s3://bucket/a")
    with mirror.open_parts(path) as file:
        assert file.read(10) == CONTENT[:10]
        emptied_by_another(path)
        file.seek(10 * BLOCK)
        assert file.read(10) == CONTENT[10 * BLOCK :][:10]
    with mirror.open_parts(path) as file:  # what was loaded before is not believed to be there
        assert file.read(len(CONTENT)) == CONTENT


def killed_while_it_loads(path: Path, place: str, number: int) -> int:
    """Load a file in a process that is killed at the `number`-th call of a function; return how it ended."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    calls = iter(range(number))
    owner = copies.State if hasattr(copies.State, place) else os
    function = getattr(owner, place)

    def kill(*arguments):
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    try:
        setattr(owner, place, kill)
        with mirror.whole(path):
            pass
    finally:
        os._exit(0)


@pytest.mark.parametrize(("place", "number"), [("note", 3), ("fdatasync", 3), ("replace", 0), ("ftruncate", 0)])
def test_a_process_may_be_killed_at_any_moment(store, monkeypatch, place, number):
    monkeypatch.setattr(copies, "_MOST_BLOCKS", 5)
    monkeypatch.setattr(copies, "_REQUESTS_OF_A_FILE", 1)
    path = copies.mirror_folder("files") / "s3" / "bucket" / "a"
    assert killed_while_it_loads(path, place, number) == signal.SIGKILL
    with mirror.whole(path):
        assert path.read_bytes() == CONTENT
    assert (sum(stop - start for start, stop in store.loaded) < len(CONTENT)) == bool(number)


def test_a_path_that_another_machine_sent_is_one_of_the_store(store):
    path = mirror.local_path("s3://bucket/a")
    shutil.rmtree(cache_folder())
    with mirror.whole(path):
        assert path.read_bytes() == CONTENT


def test_an_upload_is_whole_or_absent_and_leaves_nothing_here(store):
    path = mirror.local_path("s3://bucket") / "new" / "c"
    with pytest.raises(ZeroDivisionError), mirror.uploaded_file(path) as staged:
        staged.write_bytes(b"half")
        raise ZeroDivisionError
    assert "s3://bucket/new/c" not in store.files and not path.exists()
    with mirror.uploaded_file(path) as staged:
        staged.write_bytes(CONTENT)
    assert store.files["s3://bucket/new/c"] == CONTENT and held(path) == 0 and path.stat().st_size == len(CONTENT)
    assert not list((cache_folder() / "remote" / "uploads").iterdir())


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def become_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[4] / "secret")


def have_a_link_above(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to(path.parents[4] / "outside")


@pytest.mark.parametrize("damage", [cut, become_a_link, have_a_link_above])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_copy_that_was_damaged_is_made_anew_and_no_link_is_followed(store, tmp_path, damage, is_listed):
    path = mirror.local_path("s3://bucket/a")
    (tmp_path / "secret").write_bytes(CONTENT[::-1])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(CONTENT[::-1])
    with mirror.whole(path):
        pass
    damage(path)
    if is_listed:
        mirror.local_path("s3://bucket/a")
    with mirror.whole(path), mirror.open_parts(path) as file:
        assert path.read_bytes() == CONTENT and file.read(len(CONTENT)) == CONTENT
    assert not path.is_symlink() and path.resolve() == path
    for other in (tmp_path / "secret", tmp_path / "outside" / "a"):
        assert other.read_bytes() == CONTENT[::-1]


def test_a_copy_that_is_cut_while_it_is_open_is_told(store):
    path = mirror.local_path("s3://bucket/a")
    with mirror.open_parts(path) as file:
        file.read(len(CONTENT))
        cut(path)
        file.seek(2000)
        with pytest.raises(ValueError, match=r"^the copy of s3://bucket/a was truncated during reading; run again$"):
            file.read(10)


def test_an_object_may_become_a_folder_and_a_folder_an_object(store):
    for name in ("s3://bucket/a/inside", "s3://bucket/a"):
        folder = mirror.local_path("s3://bucket")
        store.files = {name: CONTENT}
        path = mirror.local_path("s3://bucket") / name.removeprefix("s3://bucket/")
        with mirror.whole(path):
            assert path.read_bytes() == CONTENT
        assert [each for each in folder.rglob("*") if each.is_file()] == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/b", r"^s3://bucket/a is an object, but s3://bucket/a/b lies in a folder of that name; rename one of them"),
        ("n" * 256, r"^s3://bucket/n+\.\.\. has a name of 256 bytes, but files on this machine allow at most 255;"),
    ],
)
def test_names_that_no_file_can_have_are_one_line(store, name, message):
    store.files[f"s3://bucket/{name}"] = CONTENT
    with pytest.raises(ValueError, match=message):
        mirror.local_path("s3://bucket")
    del store.files[f"s3://bucket/{name}"]
    store.files[f"s3://bucket/{'n' * 255}"] = CONTENT
    with mirror.whole(path := mirror.local_path("s3://bucket") / ("n" * 255)):
        assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite", "replace"])
def test_a_full_disk_is_one_line_that_names_the_object(store, monkeypatch, call):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = copies.mirror_folder("files") / "s3" / "bucket" / "a"
    monkeypatch.setattr(copies.os, call, fail)
    expected = r"^s3://bucket/a cannot be kept in /[^\n]*/remote \(No space left on device\); make room there, or set"
    with pytest.raises(ValueError, match=expected), mirror.whole(path):
        pass


def test_local_paths_are_left_alone(tmp_path):
    path = tmp_path / "a"
    assert mirror.local_path(str(path)) == path and mirror.local_path(path) == path
    assert not mirror.is_mirrored(path) and mirror.absolute_path("a") == str(Path("a").resolve())
    with mirror.whole(path), mirror.uploaded_file(path) as staged:
        staged.write_bytes(b"local")
    with mirror.open_parts(path) as file:
        assert file.read() == b"local"


def test_messages_name_urls(store):
    path = mirror.local_path("s3://bucket/a")
    assert mirror.with_urls(f"{path} and {path} are damaged") == "s3://bucket/a and s3://bucket/a are damaged"
    assert mirror.with_urls("data/a is damaged") == "data/a is damaged"
    assert mirror.absolute_path("s3://bucket/a") == "s3://bucket/a"


def test_blocks_of_a_real_store(store_url, tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    with mirror.uploaded_file(mirror.local_path(store_url) / "train" / "a") as staged:
        staged.write_bytes(CONTENT)
    path = mirror.local_path(f"{store_url}/train") / "a"
    with mirror.open_parts(path) as file:
        file.seek(45 * BLOCK - 5)
        assert file.read(10) == CONTENT[45 * BLOCK - 5 :][:10] and held(path) == 2 * BLOCK
    with mirror.whole(path):
        assert path.read_bytes() == CONTENT
    before = path.stat().st_mtime
    object_store.upload(tmp_path / "a", f"{store_url}/train/a")
    mirror.local_path(store_url)
    assert path.stat().st_mtime == before and held(path)  # the same content is the same version

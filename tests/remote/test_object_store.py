"""The connection to an object store: what fails is tried again where that can help, and ends in one line."""

import pytest
import s3fs

from rvtssm.remote import object_store
from rvtssm.remote.object_store import describe, list_files, parts_of, read_range, upload
from rvtssm.system import extras


class Flaky:
    """A file system of fsspec whose first operations fail."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"0123456789"[start:end]


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The pauses that were made, none of which lasts."""
    made: list[float] = []
    monkeypatch.setattr(object_store.time, "sleep", made.append)
    return made


@pytest.fixture
def flaky(monkeypatch):
    def make(*errors: Exception) -> Flaky:
        files = Flaky(*errors)
        monkeypatch.setattr(object_store, "connected", lambda url: (files, url))
        return files

    return make


def test_a_connection_that_breaks_is_tried_again(flaky, pauses):
    flaky(ConnectionResetError("reset by peer"), TimeoutError())
    assert read_range("s3://bucket/a", 2, 5) == b"234" and pauses == [0.5, 1.0]


def test_a_connection_that_stays_broken_is_one_line_that_says_what_was_tried(flaky, pauses):
    files = flaky(*[ConnectionResetError("reset\nby peer")] * 9)
    expected = r"^s3://bucket/a cannot be read \(reset by peer\): 5 attempts in 0 s failed; check the network [^\n]*$"
    with pytest.raises(ValueError, match=expected):
        read_range("s3://bucket/a", 2, 5)
    assert files.calls == 5 and pauses == [0.5, 1, 2, 4]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("The specified bucket does not exist"), "does not exist; check the bucket and the name"),
        (PermissionError("Forbidden"), r"\(Forbidden\); check the name and the credentials"),
        (type("NoCredentialsError", (Exception,), {})("no keys"), r"\(no keys\); check the name and the credentials"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(flaky, pauses, error, said):
    files = flaky(error)
    with pytest.raises(ValueError, match=rf"^s3://bucket/a cannot be read[^\n]*{said}$"):
        read_range("s3://bucket/a", 0, 5)
    assert files.calls == 1 and not pauses


def test_a_file_that_became_shorter_is_one_line(flaky):
    flaky()
    with pytest.raises(ValueError, match="has changed since it was listed"):
        read_range("s3://bucket/a", 5, 20)


def test_files_of_a_store(store_url, tmp_path):
    assert list_files(store_url) == {}
    for name in ("train/a.h5", "train/b/c.h5"):
        (tmp_path / "file").write_text(name)
        assert upload(tmp_path / "file", f"{store_url}/{name}").num_bytes == len(name)
    found = list_files(store_url)
    assert {name: file.num_bytes for name, file in found.items()} == {"train/a.h5": 10, "train/b/c.h5": 12}
    assert list_files(f"{store_url}/train/") == {"a.h5": found["train/a.h5"], "b/c.h5": found["train/b/c.h5"]}
    assert (
        list_files(f"{store_url}/train/a.h5") == {"": found["train/a.h5"]} == {"": describe(f"{store_url}/train/a.h5")}
    )
    assert read_range(f"{store_url}/train/a.h5", 6, 10) == b"a.h5"
    for url, operation in (("s3://no-such-bucket/a", list_files), (f"{store_url}/train/z", describe)):
        with pytest.raises(
            ValueError, match=rf"^{url} cannot be \w+: it does not exist; check the bucket and the name$"
        ):
            operation(url)


def test_a_file_cannot_lead_out_of_its_folder(store_url):
    store = s3fs.S3FileSystem()
    for name in ("../outside", "a//b", "folder/"):
        store.call_s3("put_object", Bucket=store_url.split("/")[2], Key=f"{store_url.split('/')[3]}/{name}", Body=b"1")
    assert list_files(store_url) == {}


def test_no_store_is_one_line(store_url, pauses, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(ValueError, match=r"^s3://bucket/a cannot be listed \(Could not connect [^\n]*: 5 attempts in "):
        list_files("s3://bucket/a")
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "s3://bucket//a", "s3://bucket/../a", "s3://bucket/./a"])
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match=r"is not of the form s3://BUCKET/FOLDER$"):
        parts_of(url)


@pytest.mark.parametrize("url", ["s3://key:secret@host/a", "https://host/a?signature=secret"])
def test_credentials_in_an_address_are_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match="pass credentials through the environment") as error:
        parts_of(url)
    assert "secret" not in str(error.value)


def test_other_stores_say_which_package_they_need(monkeypatch):
    with pytest.raises(ValueError, match=r"^reference://bucket/a cannot be opened \(.* missing 1 required .*\)$"):
        list_files("reference://bucket/a")  # needs more than a URL
    with pytest.raises(ValueError, match=r"^foo://bucket/a cannot be opened \(Protocol not known: foo\)$"):
        list_files("foo://bucket/a")
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "s3fs")
    with pytest.raises(ValueError, match=r"^s3://bucket/a needs the package s3fs; run `bash .*install.sh remote`"):
        list_files("s3://bucket/a")


def test_an_upload_that_the_store_has_cut_is_refused(store_url, tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"whole")
    files, _ = object_store.connected(f"{store_url}/a")
    monkeypatch.setattr(files, "put_file", lambda source, target: files.pipe_file(target, b"half"))
    with pytest.raises(ValueError, match=r"/a has 4 bytes after an upload of 5; delete it and run again$"):
        upload(tmp_path / "a", f"{store_url}/a")

"""Fixtures and settings that every test shares."""

import atexit
import fcntl
import gc
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from hypothesis import settings

from tests import afresh

# no deadline: the first call of a kernel compiles it; derandomised: a failure is the same on every machine
settings.register_profile("rvtssm", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("rvtssm")

gc.disable()  # until all tests are collected: nothing of what is imported and collected is garbage


def pytest_collection_finish() -> None:
    """Search for garbage less often, and not among the millions of objects that are there before the first test."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    atexit.register(gc.unfreeze)  # because extensions report what the interpreter cannot remove at its end as a leak


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Indexes of recordings go to a folder of this run, and not to the cache of the user."""
    os.environ["RVTSSM_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder with recorded outputs of the official code."""
    folder = Path(os.environ.get("RVTSSM_GOLDEN_DIR") or Path(__file__).parent / "golden")
    if not folder.is_dir():
        pytest.fail(f"no golden data at {folder}; set RVTSSM_GOLDEN_DIR to the folder that holds them")
    return folder


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """A function: the name of a folder and a function that fills it -> the folder, filled once per run of the suite.

    The processes of pytest-xdist share it: the first one that asks fills the folder, the others wait for it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made_once"
    shared.mkdir(exist_ok=True)

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        folder, whole = shared / name, shared / f"{name}.whole"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
                folder.mkdir()
                fill(folder)
                whole.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def prepared() -> ForkServerContext:
    """What `multiprocessing` starts here has no threads, and has imported everything already, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.forked"])
    forkserver.ensure_running()  # here, because it keeps the signals that are blocked where it is started
    return context


@pytest.fixture
def prepared_workers(prepared: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker processes of a run come from `prepared`, whatever it asks for."""
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: prepared)


@pytest.fixture
def run_afresh(prepared: ForkServerContext, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """A function: a program, the folder that it runs in, the letters of its terminal -> exit code and what it printed.

    It imports this package again, from the folder if it is there, and finds all other packages imported.
    """

    def run(program: str, folder: Path = tmp_path, encoding: str = "utf-8") -> tuple[int, str]:
        printed = tmp_path / "printed.txt"
        job = prepared.Process(target=afresh.run, args=(program, folder, printed, encoding))
        job.start()
        job.join()
        return job.exitcode, printed.read_text(encoding)

    return run


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that read golden data are marked so, and tests marked gpu run where there is a CUDA device."""
    for item in items:
        if isinstance(item, pytest.Function) and "golden_dir" in item.fixturenames:
            item.add_marker("golden")
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_tests:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function: the words of a command that must be refused -> the one line that says why."""
    from rvtssm.cli.main import main

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        (line,) = (line for line in printed.err.splitlines() if line and "━" not in line)
        return line

    return run


@pytest.fixture
def printed_by(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function: the words of a command that must succeed -> what it prints."""
    from rvtssm.cli.main import main

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """Reports without plots, pictures and page, which take longest."""
    from rvtssm.evaluation import evaluating, pages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "to_html", lambda *_: "")
        patch.setattr(evaluating, "worst_pictures", lambda *_: [])
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per module, for examples that hypothesis makes by the hundred."""
    return tmp_path_factory.mktemp("scratch")

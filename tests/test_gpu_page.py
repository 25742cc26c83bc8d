"""Every place where the code differs on a GPU stands on docs/gpu.md, with a test that exists and is marked `gpu`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
ON_GPU = re.compile(r"torch\.cuda|\"cuda\"|pin_memory\(|on_gpu|non_blocking=True")


def test_every_file_that_differs_on_a_gpu_is_listed():
    files = (ROOT / "rvtssm").rglob("*.py")
    differing = {str(path.relative_to(ROOT)) for path in files if ON_GPU.search(path.read_text())}
    assert differing == set(re.findall(r"^\| `(rvtssm/[\w/.]+)`", PAGE, re.MULTILINE))


def test_the_tests_of_the_page_exist_and_need_a_gpu():
    named = set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE))
    assert len(named) >= 10
    for path, name in named:
        before = (ROOT / path).read_text().partition(f"def {name}(")[0].splitlines()[-6:]
        assert any("mark.gpu" in line or "by_kernel" in line for line in before), (path, name)


def test_the_check_of_a_gpu_names_benchmarks_that_exist():
    named = re.findall(r"-m (benchmarks\.\w+)", (ROOT / "scripts" / "gpu_check.sh").read_text())
    assert len(named) == 4
    for name in named:
        path = ROOT / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file()

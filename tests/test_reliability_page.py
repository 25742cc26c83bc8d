"""Every promise on docs/reliability.md names tests, and they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs" / "reliability.md").read_text().splitlines() if line.startswith("| ")]


def test_every_promise_names_tests_that_exist():
    defined = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    promises = [row.split(" | ") for row in ROWS if not row.startswith(("| promise", "|---"))]
    assert len(promises) > 30
    for promise, tests in promises:
        names = [name for name in re.findall(r"(?<![/\w])(test_\w+)(?!\.py)\b", tests)]
        files = re.findall(r"tests/[\w/]+\.py", tests)
        assert names or files, promise
        assert [name for name in names if name not in defined and not name.endswith("_py")] == []
        assert [file for file in files if not (ROOT / file).is_file()] == []

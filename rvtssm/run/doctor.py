"""`rvtssm doctor`: what of an installation works."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from rvtssm.config import Config
from rvtssm.run import installation
from rvtssm.run.console import console


def doctor(config: Config) -> int:
    """What works and what does not, whatever the configuration; 2 if something that every run needs does not."""
    checks = installation.examine()
    table = Table(show_header=False)
    for check in checks:
        table.add_row(Text("ok", "green") if check.ok else Text("broken", "red"), check.name, check.detail)
    console.print(table)
    return 0 if all(check.ok for check in checks) else 2

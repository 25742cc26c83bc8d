"""The terminal that every verb speaks to."""

from __future__ import annotations

from rich.console import Console

console = Console(markup=False)  # names of files may hold brackets

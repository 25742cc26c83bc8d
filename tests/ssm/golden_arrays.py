"""Recorded arrays that know which of them a test has looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np


class GoldenArrays(Mapping[str, np.ndarray]):
    """The arrays of an .npz file whose names start with `prefix`, by the rest of their names."""

    def __init__(self, arrays: Mapping[str, np.ndarray], prefix: str = "", looked_at: set[str] | None = None) -> None:
        self.arrays, self.prefix = arrays, prefix
        self.looked_at = set() if looked_at is None else looked_at

    def __getitem__(self, key: str) -> np.ndarray:
        self.looked_at.add(self.prefix + key)
        return self.arrays[self.prefix + key]

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self.prefix) for key in self.arrays if key.startswith(self.prefix))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, key: object) -> bool:
        return f"{self.prefix}{key}" in self.arrays

    def under(self, prefix: str) -> GoldenArrays:
        return GoldenArrays(self.arrays, self.prefix + prefix, self.looked_at)

    def assert_all_looked_at(self) -> None:
        assert self.looked_at == set(self.arrays), f"not compared: {sorted(set(self.arrays) - self.looked_at)}"


def read_arrays(path: Path) -> GoldenArrays:
    with np.load(path) as file:
        return GoldenArrays(dict(file))

"""Recorded arrays that know which of them a test has looked at."""

import numpy as np


class GoldenArrays(dict[str, np.ndarray]):
    """Arrays by their names."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self.looked_at: set[str] = set()

    def __getitem__(self, key: str) -> np.ndarray:
        self.looked_at.add(key)
        return super().__getitem__(key)

    def assert_all_looked_at(self) -> None:
        assert self.looked_at == set(self), f"not compared: {sorted(set(self) - self.looked_at)}"

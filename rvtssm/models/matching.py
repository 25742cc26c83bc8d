"""The cheapest one-to-one matching between the queries and the objects of a frame.

Source: the Hungarian method (Kuhn, 1955) by shortest augmenting paths (Jonker and Volgenant, 1987).
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor


def match_cheapest(cost: Tensor, num_targets: Tensor) -> Tensor:
    """Return the target of every query, -1 for none: (M, Q) int64 on the device of `cost`.

    cost (M, Q, N), of whose columns the first num_targets (M,) of a frame are real. If a frame has more targets than
    queries, every query has one and the sum of costs is still the smallest. Costs that are not finite count as large.
    """
    finite = torch.nan_to_num(cost.detach().double(), nan=1e9, posinf=1e9, neginf=-1e9)
    matched = np.full(cost.shape[:2], -1, np.int64)
    for frame, number, found in zip(finite.cpu().numpy(), num_targets.tolist(), matched, strict=True):
        real = frame[:, :number]
        if number <= len(real):
            found[_assign_rows(np.ascontiguousarray(real.T))] = np.arange(number)
        else:
            found[:] = _assign_rows(np.ascontiguousarray(real))
    return torch.from_numpy(matched).to(cost.device)


@numba.njit(cache=True, nogil=True)
def _assign_rows(cost):  # type: ignore[no-untyped-def]
    """Return the column of every row that makes the sum of costs smallest: (R, C) with R <= C -> (R,) int64.

    Rows join one by one. Each takes the cheapest path of exchanges to a free column (Dijkstra on reduced costs, which
    the prices of rows and columns keep from being negative).
    """
    num_rows, num_columns = cost.shape
    row_price, column_price = np.zeros(num_rows), np.zeros(num_columns)
    owner = np.full(num_columns, -1, np.int64)  # row of each column
    column_of = np.full(num_rows, -1, np.int64)
    for new_row in range(num_rows):
        distance = np.full(num_columns, np.inf)
        before = np.full(num_columns, -1, np.int64)  # row from which a column is reached
        is_done = np.zeros(num_columns, np.bool_)
        row, reached = new_row, 0.0
        while True:
            nearest = -1
            for column in range(num_columns):
                if is_done[column]:
                    continue
                length = reached + cost[row, column] - row_price[row] - column_price[column]
                if length < distance[column]:
                    distance[column], before[column] = length, row
                if nearest < 0 or distance[column] < distance[nearest]:
                    nearest = column
            reached = distance[nearest]
            is_done[nearest] = True
            if owner[nearest] < 0:
                break
            row = owner[nearest]
        row_price[new_row] += reached
        for column in range(num_columns):
            if is_done[column] and column != nearest:
                row_price[owner[column]] += reached - distance[column]
                column_price[column] -= reached - distance[column]
        column = nearest
        while True:  # the exchanges, backwards along the path
            row = before[column]
            owner[column] = row
            column_of[row], column = column, column_of[row]
            if row == new_row:
                break
    return column_of

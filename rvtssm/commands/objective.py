"""What a sweep that searches maximises: one number from the result of a verb."""

from typing import Any

from rvtssm.training.checkpoints import best_ap


def objective(verb: str, result: Any) -> float | None:
    """Return the best validation AP of a training, the AP of an evaluation at its reference rate, otherwise None."""
    if verb == "train":
        return best_ap(result)
    if verb == "evaluate" and result:  # only the first process of a launcher has reports
        report = result[0]
        return next(row.metrics["AP"] for row in report.rows if row.hz == report.breakdown_hz)
    return None

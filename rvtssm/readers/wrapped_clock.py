"""The rule for clocks of few bits, which begin again at 0. A late event or a glitch may go back to before that."""

from rvtssm.system.jit import jit


@jit
def num_wraps(before, now, period, late, wrapped):  # type: ignore[no-untyped-def]
    """Return how often a clock has begun again between two of its values: 1, 0, or -1 for back to before it did.

    Args:
        before: The value before, or -1.
        now: The value.
        period: The number of values that the clock has.
        late: By how many values a late event or a glitch is older at most.
        wrapped: The time that was added because the clock has begun again; 0: it has not yet.
    """
    if before - now >= period // 2:  # a smaller step back is a glitch
        return 1
    return -1 if now - before > period - late and wrapped else 0

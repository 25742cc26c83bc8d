"""Which rate is sustained on a machine that other programs may use as well, and what helps there."""

import math
import os

_REMEDY = "if other programs use its processors, set OMP_WAIT_POLICY=PASSIVE or OMP_NUM_THREADS=1 before the start"


def busy_machine_remedy(num_threads: int, wall_s: float, processor_s: float) -> str:
    """Return a clause on how PyTorch's threads stop waiting actively, empty if that would not help.

    It helps if several threads compute, and either more programs want to run than there are processors, or the
    threads of this process got less than half of the time.

    Args:
        num_threads: How many threads compute (`torch.get_num_threads`).
        wall_s: How long the computation took.
        processor_s: Processor time of this process meanwhile, over all threads (`time.process_time`).
    """
    if num_threads == 1 or os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        return ""
    is_starved = wall_s > 2 * processor_s / num_threads
    return _REMEDY if is_starved or os.getloadavg()[0] > (os.cpu_count() or 1) else ""


def sustained_in_words(sustained_hz: float) -> str:
    """Return which rate was measured, in words that do not promise it for a machine with more or less to do."""
    return f"beside whatever else ran, this machine sustains about {floored(sustained_hz)} Hz"


def hz_to_set(sustained_hz: float) -> str:
    """Return the rate to recommend: at least 5 % below the sustained one, because the time of a window varies."""
    return floored(0.95 * sustained_hz)


def two_digits(value: float) -> str:
    """Return a number that is only known roughly, such as 0.44, 15 or 230."""
    return f"{float(f'{value:.2g}'):g}"


def floored(value: float) -> str:
    """Return a number greater than 0 with two digits that is not above it."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return two_digits(math.floor(value / step + 1e-9) * step)

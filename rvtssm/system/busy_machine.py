"""What helps if other programs use the processors on which PyTorch's threads wait for each other."""

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

"""A container or a cluster job leaves less than the machine has: its limits stand in control groups of both kinds."""

import os

import pytest

from rvtssm.system import machine as own

GB = 1 << 30
# Of version 2: a job with 8 GB and 4 processors, in a slice with 6 GB and no limit of processors.
UNIFIED = {
    "memory.max": "max",
    "slurm/memory.max": f"{6 * GB}",
    "slurm/memory.current": f"{4 * GB}",
    "slurm/memory.stat": f"anon 5\ninactive_file {1 * GB}\n",
    "slurm/cpu.max": "max 100000",
    "slurm/job/memory.max": f"{8 * GB}",
    "slurm/job/memory.current": f"{2 * GB}",
    "slurm/job/cpu.max": "450000 100000",
}
# Of version 1: a container with 3 GB and 2.5 processors.
SEPARATE = {
    "memory/memory.limit_in_bytes": f"{1 << 62}",
    "memory/docker/abc/memory.limit_in_bytes": f"{3 * GB}",
    "memory/docker/abc/memory.usage_in_bytes": f"{2 * GB}",
    "memory/docker/abc/memory.stat": f"cache 9\ntotal_inactive_file {GB // 2}\n",
    "cpu,cpuacct/cpu.cfs_quota_us": "-1",
    "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
    "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
}
SEEN_FROM_INSIDE = {name.replace("docker/abc/", ""): value for name, value in SEPARATE.items() if "abc" in name}
ROOT_ALONE = {"memory.max": f"{GB}", "cpu.max": "50000 100000"}
OF_VERSION_1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function: makes this a machine with 64 processors and 32 GB free, and with control groups."""

    def make(files: dict[str, str], membership: str) -> None:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        (tmp_path / "membership").write_text(membership)
        (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {32 * GB >> 10} kB\n")

    monkeypatch.setattr(own, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(own, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(own, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    return make


@pytest.mark.parametrize(
    ("files", "membership", "num_bytes", "num_cores"),
    [
        (UNIFIED, "0::/slurm/job\n", 3 * GB, 4),  # the slice has less left than the job
        (SEPARATE, OF_VERSION_1, 1.5 * GB, 2),
        (SEEN_FROM_INSIDE, OF_VERSION_1, 1.5 * GB, 2),  # the host tells the path, the container sees its root
        ({f"unified/{name}": text for name, text in UNIFIED.items()}, f"{OF_VERSION_1}0::/slurm/job\n", 3 * GB, 4),
        (ROOT_ALONE, "0::/\n", GB, 1),  # at least one processor
        ({}, "", 32 * GB, 64),  # no control groups
    ],
)
def test_the_smallest_limit_holds_and_what_is_in_use_is_not_free(machine, files, membership, num_bytes, num_cores):
    machine(files, membership)
    assert (own.free_bytes(), own.num_usable_cores()) == (num_bytes, num_cores)


def test_an_unknown_system_has_no_limits(machine):
    assert own.free_bytes() is None
    assert own.num_usable_cores() == 64

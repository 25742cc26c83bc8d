"""The Triton kernels give the numbers of the CPU path: natively on a GPU, elsewhere under Triton's interpreter.

The interpreter has to be asked for before Triton is imported, so it runs this file once more in a process of its own.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from rvtssm.ssm import scan_cpu, shared_state
from rvtssm.ssm.shared_state import SharedSystem, run_shared

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-13, torch.float32: 1e-5, torch.float64: 1e-13}
# steps, sequences, modes, groups, whether decay varies by step
SHAPES = [
    (1, 1, 1, 1, False),
    (2, 5, 3, 1, False),
    (3, 6, 5, 2, True),
    (2, 6, 70, 3, False),  # more modes than a program holds
    (4, 4, 9, 4, True),
    (17, 1, 2, 1, False),
    (2, 130, 3, 1, False),  # more sequences than a program holds
]
pytest.importorskip("triton")


def by_kernel(test):
    return test if IS_INTERPRETED else pytest.mark.gpu(test)


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    atol = tolerance * float(wanted.real.abs().max())
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=atol)


@by_kernel
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, torch.complex64) for shape in SHAPES), *((SHAPES[2], dtype) for dtype in list(TOLERANCE)[1:])],
)
def test_both_directions_equal_the_cpu_path(shape, dtype):
    from rvtssm.ssm import scan_triton

    num_steps, num_sequences, num_modes, groups, varies = shape
    torch.manual_seed(num_steps)
    decay = 0.9 * torch.rand(num_steps if varies else 1, groups, num_modes).to(dtype)
    if dtype.is_complex:
        decay = decay * torch.polar(torch.ones(num_modes), 6 * torch.rand(num_modes)).to(dtype)
    width = num_modes * (1 + dtype.is_complex)
    drive, grad = torch.randn(2, num_steps, num_sequences, width, dtype=dtype.to_real())
    state, grad_last = torch.randn(2, num_sequences, num_modes, dtype=dtype)
    results = []
    for run, device in ((scan_triton, DEVICE), (scan_cpu, "cpu")):
        decay_, x, g, last, carried, before = (
            value.clone().to(device) for value in (decay, drive, grad, state, grad_last, state)
        )
        run.forward(x, decay_, last)
        results.append((x, last, run.backward(g, x, before, decay_, carried), g, carried))
    for found, wanted in zip(*results, strict=True):
        close(found, wanted, TOLERANCE[dtype])


@by_kernel
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_whole_system_equals_the_cpu_path(monkeypatch, dtype, tolerance):
    """Also with projections in bfloat16, which the kernels read and write as they are: the state is float32."""
    from rvtssm.ssm import scan_triton

    torch.manual_seed(0)
    num_steps, num_sequences, dim, num_modes = 5, 6, 4, 3
    decay = torch.polar(0.9 * torch.rand(1, 1, num_modes), 6 * torch.rand(1, 1, num_modes))
    gain = torch.randn(num_steps, 2, num_modes, dtype=torch.complex64)
    values = [decay, gain, torch.randn(2 * num_modes, dim), torch.randn(dim, 2 * num_modes), torch.randn(dim)]
    u, grad_y = torch.randn(2, num_steps, num_sequences, dim)
    state = torch.randn(num_sequences, num_modes, dtype=torch.complex64)
    results = []
    for run, device, precision in ((scan_triton, DEVICE, dtype), (scan_cpu, "cpu", torch.float32)):
        monkeypatch.setattr(shared_state, "sweeps", lambda device_type, method, run=run: run)
        leaves = [value.to(device).requires_grad_() for value in (*values, u, state)]
        decay_, gain_, w_in, w_out, d, u_, state_ = leaves
        system = SharedSystem(decay_.expand(num_steps, 2, -1), gain_, None, w_in, w_out, d)
        y, last = run_shared(system, u_.to(precision), state_)
        assert (y.dtype, last.dtype) == (precision, torch.complex64)
        results.append((y.float(), last, *torch.autograd.grad(y, leaves, grad_y.to(device, precision))))
    for found, wanted in zip(*results, strict=True):
        close(found, wanted, tolerance)


if not IS_INTERPRETED:

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run natively")
    @pytest.mark.skipif(
        Version(version("triton")) < Version("3.7"), reason="its interpreter cannot read the bounds of a loop"
    )
    def test_the_kernels_under_the_interpreter():
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "--noconftest",
            __file__,
        ]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            command, cwd=root, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "skipped" not in done.stdout

"""What processes that tests fork need, imported once by the server that forks them.

It starts no threads. What is here when a child is forked is neither imported nor searched for garbage again.
"""

import contextlib
import gc

import pytest  # noqa: F401
import timm.layers  # noqa: F401
import torch
import torch.utils.tensorboard

import rvtssm.cli.train  # noqa: F401
from rvtssm.cli.main import compose
from rvtssm.ssm import scan_cpu

with contextlib.suppress(ImportError):
    import s3fs  # noqa: F401  which Lightning looks for when it writes its log

compose([])  # finds the plugins of Hydra
drive, state = torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.complex64)
decay = state[None]
scan_cpu.forward(drive, decay, state)  # reads what numba has compiled
scan_cpu.backward(drive, drive, state, decay, state)
gc.collect()
gc.freeze()

"""What processes that tests fork need, imported once by the server that forks them.

It starts no threads. What is here when a child is forked is neither imported nor searched for garbage again.
"""

import gc

import pytest  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

import rvtssm.cli.train  # noqa: F401
from rvtssm.cli.main import compose

compose([])  # finds the plugins of Hydra
gc.collect()
gc.freeze()

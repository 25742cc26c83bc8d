"""Events become boxes: files, streams and cameras, and the results."""

from rvtssm.system.machine import share_processors

share_processors()  # before anything here imports torch

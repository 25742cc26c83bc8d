"""rvtssm: object detection with event cameras, state-space models that run at any rate."""

__version__ = "0.1.0"

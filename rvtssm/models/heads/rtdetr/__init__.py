"""The head of RT-DETR."""

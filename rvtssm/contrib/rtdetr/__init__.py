"""Optional: the head of RT-DETR, whose queries need no non-maximum suppression; README.md says more."""

"""The detector: histograms and carried states in, boxes with scores out."""

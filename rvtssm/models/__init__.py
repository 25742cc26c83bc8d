"""The detector: frames and carried states go in, boxes with scores come out."""

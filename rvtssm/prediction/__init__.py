"""From one recording to detections and files, and the Python API."""

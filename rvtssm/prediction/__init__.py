"""Turn one recording into detections and files. The Python API is also here."""

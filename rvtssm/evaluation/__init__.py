"""Turn detections into numbers: which boxes count, average precision, the table over inference rates, the report.

Detectors run here over whole splits; `rvtssm.detection.stream` runs one over the recordings of a loader.
"""

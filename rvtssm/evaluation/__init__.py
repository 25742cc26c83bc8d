"""Numbers from detections: which boxes count, average precision, the table over inference rates, the report.

Nothing here runs a model; streaming recordings through one is `rvtssm.streaming.stream`.
"""

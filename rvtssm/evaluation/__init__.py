"""Turn detections into numbers: which boxes count, average precision, the table over inference rates, the report.

`evaluating.evaluate` scores weights on a split; `rates.score_rate` is the definition of the numbers of one rate.
"""

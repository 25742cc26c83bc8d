"""A dataset from outside the package: recordings in the raw layout of Gen1, from a sensor of another size."""

from dataclasses import replace

from rvtssm.datasets import DATASETS

DATASETS["toy"] = replace(DATASETS["synthetic"], name="toy", height=64, width=96)

"""Writes the last weights of a training as a checkpoint of their own, where the training also averaged its weights.

python -m benchmarks.recipe.last_weights CHECKPOINT OUT
"""

import sys

from rvtssm.models.checkpoint import load_file, save_file


def main(checkpoint: str, out: str) -> None:
    content = load_file(checkpoint)
    if "current_model_state" not in content:
        raise SystemExit(f"{checkpoint} has no averaged weights, so it holds the last ones already")
    kept = {name: content[name] for name in ("rvtssm", "written_by")}
    save_file(out, kept | {"state_dict": content["current_model_state"]})


if __name__ == "__main__":
    main(*sys.argv[1:])

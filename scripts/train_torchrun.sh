#!/usr/bin/env bash
# Train on all GPUs of one or several machines with torchrun. It starts from any folder; arguments are overrides of
# `rvtssm train`.
#
#   bash scripts/train_torchrun.sh experiment=gen1_s5_base dataset.prepared_dir=data/gen1_prepared out=outputs/gen1
#   NODES=2 HEAD=10.0.0.1 bash scripts/train_torchrun.sh ...   # on both machines; 10.0.0.1 is one of them
#
# PROCESSES is the number of processes per machine (default: one per GPU), PORT a free port of HEAD. The total batch of a
# recipe (sampling.total_batch) is divided over the processes; a number that does not divide it is refused. Without a
# total batch, a step has sampling.batch_size chunks per process. All machines must see the folder `out`. If a process
# dies, torchrun ends the others and starts all of them again, up to RESTARTS times (default: once). They continue from
# the last checkpoint, and so does this command if it is repeated.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

python=${PYTHON:-$checkout/.venv/bin/python}
nodes=${NODES:-1}
processes=${PROCESSES:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)}
if [ "$processes" -lt 1 ]; then
    echo "scripts/train_torchrun.sh: no GPU was found; set the number of processes, as in PROCESSES=2" >&2
    exit 2
fi

exec "$python" -m torch.distributed.run \
    --nnodes "$nodes" --nproc-per-node "$processes" --max-restarts "${RESTARTS:-1}" \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD:-localhost}:${PORT:-29400}" --rdzv-id rvtssm \
    "$checkout/scripts/train.py" resume=auto training.devices="$processes" training.num_nodes="$nodes" "$@"

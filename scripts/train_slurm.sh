#!/usr/bin/env bash
# Train on a SLURM cluster with one process per GPU. Submit it from the checkout; arguments are overrides of
# `rvtssm train`.
#
#   sbatch scripts/train_slurm.sh dataset=gen1 dataset.prepared_dir=data/gen1_prepared out=outputs/gen1
#   sbatch --nodes=16 --time=4:00:00 scripts/train_slurm.sh ...          # 64 GPUs, four hours at a time
#
# SLURM sends a signal ten minutes before the time of the job is over (`--signal` below). The run then finishes its step
# or validation, writes last.ckpt and ends, and this script puts the job back into the queue. The next run continues from
# last.ckpt. The same happens after a preemption, if the cluster requeues the job, and when the job is submitted again.
# The time between signal and end must be longer than a validation takes.
#SBATCH --job-name=rvtssm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

srun --kill-on-bad-exit=1 "${PYTHON:-.venv/bin/python}" scripts/train.py resume=auto \
    training.devices="$SLURM_NTASKS_PER_NODE" training.num_nodes="$SLURM_NNODES" "$@" &
run=$!

is_time_over=
trap 'is_time_over=1; kill -USR1 "$run" || true' USR1 # srun passes it on to every process
code=0
wait "$run" || code=$?
if [ -n "$is_time_over" ]; then
    # The signal ended only the first `wait`; the run may still be working.
    code=0
    wait "$run" || code=$?
    if [ "$code" -ne 0 ]; then # 0 means that the run is complete
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"

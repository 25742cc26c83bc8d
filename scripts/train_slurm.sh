#!/usr/bin/env bash
# Trains on a SLURM cluster, one process per GPU; submitted from the checkout, arguments are overrides of `rvtssm train`.
#
#   sbatch scripts/train_slurm.sh dataset=gen1 dataset.prepared_dir=data/gen1_prepared out=outputs/gen1
#   sbatch --nodes=16 --time=4:00:00 scripts/train_slurm.sh ...          # 64 GPUs, four hours at a time
#
# Ten minutes before its time is over, the job is told: the run writes last.ckpt after the step or the validation that it
# is in, ends, and the job goes back into the queue, to continue from there. So it does after a preemption, where the
# cluster itself requeues it, and when it is submitted again. Let the notice be longer than a validation takes.
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
trap 'is_time_over=1; kill -USR1 "$run" || true' USR1 # srun hands it on to every process
code=0
wait "$run" || code=$?
if [ -n "$is_time_over" ]; then
    # the signal has only ended the first wait
    code=0
    wait "$run" || code=$?
    if [ "$code" -ne 0 ]; then # 0: the run was complete
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"

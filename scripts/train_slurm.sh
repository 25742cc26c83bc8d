#!/usr/bin/env bash
# Train on a SLURM cluster with one process per GPU. Submit it from any folder; arguments are overrides of `rvtssm train`,
# and paths in them are those of that folder.
#
#   sbatch scripts/train_slurm.sh experiment=onempx_s5_base dataset.prepared_dir=data/onempx_prepared out=outputs/onempx
#   sbatch --ntasks-per-node=1 --gpus-per-node=1 scripts/train_slurm.sh experiment=gen1_s5_base ...  # on one GPU
#   sbatch --nodes=2 --time=4:00:00 scripts/train_slurm.sh ...       # on 2 x 2 GPUs, four hours at a time
#
# The total batch of a recipe (sampling.total_batch) is divided over the processes; a number that does not divide it is
# refused. Without a total batch, a step has sampling.batch_size chunks per process.
#
# SLURM sends a signal ten minutes before the time of the job is over (`--signal` below). The run then finishes its step
# or validation, writes last.ckpt and ends, and this script puts the job back into the queue. The next run continues from
# last.ckpt. The same happens after a preemption, if the cluster requeues the job, and when the job is submitted again.
# The time between signal and end must be longer than a validation takes.
#SBATCH --job-name=rvtssm
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# SLURM runs a copy of this file; it knows where the file itself is. CHECKOUT=DIR says so where SLURM does not.
script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\([^ ]*\).*/\1/p' | head -n 1)
checkout=${CHECKOUT:-$(realpath -m "$(dirname "$script")/..")}
if [ ! -f "$checkout/scripts/train.py" ]; then
    echo "scripts/train_slurm.sh: $checkout is not the checkout; name it, as in sbatch --export=ALL,CHECKOUT=DIR" >&2
    exit 2
fi

srun --kill-on-bad-exit=1 "${PYTHON:-$checkout/.venv/bin/python}" "$checkout/scripts/train.py" resume=auto \
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

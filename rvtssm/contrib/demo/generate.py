"""`rvtssm generate`: writes the recordings of a simulated dataset."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from rvtssm.cli.console import announce, say
from rvtssm.cli.inputs import needed
from rvtssm.contrib.demo.demo_config import DemoSettings
from rvtssm.contrib.demo.generate_recordings import SYNTHETIC, Simulation, generate_dataset
from rvtssm.datasets import build_spec
from rvtssm.system.output_folder import locked
from rvtssm.system.user_error import UserError


def generate(
    config: DemoSettings, only: Collection[str] | None = None, simulations: Sequence[Simulation] = (SYNTHETIC,)
) -> None:
    """Write the recordings of a simulated dataset to `dataset.raw_dir`: all, or those that `only` names."""
    spec = build_spec(replace(config.dataset, raw_dir=None))  # what was generated there before is compared below
    by_name = {simulation.spec.name: simulation for simulation in simulations}
    if spec.name not in by_name:
        raise UserError("setting.choice", name="dataset", found=spec.name, needed=[*by_name])
    simulation = by_name[spec.name].sized(spec.height, spec.width)
    folder = needed(config.dataset.raw_dir, "dataset.raw_dir=DIR", "where to write the recordings")
    settings = config.synthetic
    counts = f"{settings.num_train} + {settings.num_val} + {settings.num_test}" if only is None else ", ".join(only)
    announce(
        "generate",
        recordings=f"{counts} of {settings.duration_s:g} s",
        sensor=f"{spec.width} x {spec.height}",
        labels=f"every {settings.label_interval_us / 1000:g} ms",
        output=folder,
    )
    with locked(folder):
        generate_dataset(settings, folder, simulation, only=only)
    say(f"recordings are in {folder}")

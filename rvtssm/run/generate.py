"""`rvtssm generate`: writes the recordings of the synthetic dataset."""

from dataclasses import replace

from rvtssm.config import Config
from rvtssm.datasets import build_spec
from rvtssm.output_folder import locked
from rvtssm.run.console import say
from rvtssm.run.inputs import needed
from rvtssm.simulation.generate_recordings import generate_synthetic
from rvtssm.simulation.simulation_config import SyntheticConfig


def generate(config: Config) -> None:
    """Write the recordings of the synthetic dataset to `dataset.raw_dir`."""
    spec = build_spec(config.dataset)
    if spec.name != "synthetic":
        raise ValueError(f"only the synthetic dataset can be generated, not {spec.name}; use dataset=synthetic")
    folder = needed(config.dataset.raw_dir, "dataset.raw_dir=DIR", "where to write the recordings")
    sensor, asked = (spec.height, spec.width), (config.synthetic.height, config.synthetic.width)
    if asked not in (sensor, (SyntheticConfig.height, SyntheticConfig.width)):
        raise ValueError(
            f"synthetic.height and width {asked} differ from the sensor of the dataset {sensor}; set dataset.height "
            "and dataset.width, which every verb reads"
        )
    with locked(folder):
        generate_synthetic(replace(config.synthetic, height=spec.height, width=spec.width), folder)
    say(f"recordings are in {folder}")

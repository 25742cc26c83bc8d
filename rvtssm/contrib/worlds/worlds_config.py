"""The settings of open worlds and of `rvtssm simulate`. This file does not import the renderer."""

import random
from dataclasses import dataclass, field, replace

from rvtssm.cli.inputs import needed
from rvtssm.contrib.demo.demo_config import DemoSettings
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.contrib.worlds.rendered.scene_kinds import KINDS
from rvtssm.system.limits import check_at_least, check_choice, check_positive, check_share


@dataclass
class WorldConfig:
    """What the recordings of dataset=open_world show. A share of 0 removes that part of the world."""

    indoor_share: float = 0.3
    """Share of the recordings in a room; the others are outdoors."""
    dark_share: float = 0.2
    """Share of the recordings at night or in a dim room."""
    crowd_share: float = 0.15
    """Share of the recordings with up to three times as many actors."""
    plain_share: float = 0.0
    """Share of the training recordings outdoors by day, without crowds, animals and clutter."""
    empty_share: float = 0.0
    """Share of the training recordings in which nobody is there."""
    far_share: float = 0.0
    """Share of the recordings whose actors are at most five times as large as the smallest."""
    dusk_share: float = 0.0
    """Share of the outdoor recordings by day with little light."""
    drive_share: float = 0.0
    """Share of the outdoor recordings with a moving camera from a car at 20 to 60 km/h in traffic."""
    group_share: float = 0.0
    """Share of the people who walk beside the person placed before them."""
    max_actors: int = 9
    """Most people, vehicles and two-wheelers that are placed."""
    max_animals: int = 2
    """Most dogs, which have no label."""
    max_clutter: int = 8
    """Most trees, flags, posts, signs, screens, water and furniture."""
    min_object_px: float = 12.0
    """Height of the smallest person when placed; half of it for vehicles and animals."""
    max_object_px: float = 300.0
    """Height of the largest person when placed; half of it for vehicles and animals."""
    min_lines: int = 96
    """Fewest lines of the sensor, drawn per recording; of a larger sensor the frame shows a part."""
    max_lines: int = 720
    """Most lines of the sensor; a sensor smaller than the frame leaves the rest of it empty."""
    lens_blur: float = 1.0
    """Strongest blur of the lens, standard deviation in pixels; 0: none."""

    def plain(self) -> "WorldConfig":
        """Return the settings of an easy world, which a short training learns first."""
        return replace(self, indoor_share=0.0, dark_share=0.0, crowd_share=0.0, max_animals=0, max_clutter=0)

    def empty(self) -> "WorldConfig":
        """Return the settings of a world without people, vehicles and two-wheelers."""
        return replace(self, crowd_share=0.0, max_actors=0)


@dataclass
class OpenWorldConfig(SyntheticConfig):
    """What to generate, open and rendered worlds included."""

    world: WorldConfig = field(default_factory=WorldConfig)
    assets: str | None = None
    """Folder of the 3D models of dataset=rendered_world (rvtssm/contrib/worlds/assets.md)."""
    scenes: list[str] | None = None
    """Kinds of scenes of dataset=rendered_world; null: all."""

    @property
    def assets_folder(self) -> str:
        """The folder of the models; UserError if none is named."""
        return needed(self.assets, "assets=DIR", "the folder of 3D models; see rvtssm/contrib/worlds/assets.md")

    def is_empty(self, index: int) -> bool:
        """Return whether a recording for training shows nobody."""
        return random.Random(f"{self.seed} {index} empty").random() < self.world.empty_share

    def check(self) -> None:
        """Raise a UserError for settings that cannot be generated."""
        super().check()
        for name in self.scenes or ():
            check_choice("synthetic.scenes", name, KINDS)
        world = self.world
        check_share("synthetic.world", world, "indoor_share", "dark_share", "crowd_share", "plain_share")
        check_share("synthetic.world", world, "empty_share", "far_share", "dusk_share", "drive_share", "group_share")
        check_at_least("synthetic.world", world, 0, "max_actors", "max_animals", "max_clutter", "lens_blur")
        check_at_least("synthetic.world", world, 4, "min_object_px")
        check_at_least("synthetic.world", world, world.min_object_px, "max_object_px")
        check_at_least("synthetic.world", world, 16, "min_lines")
        check_at_least("synthetic.world", world, world.min_lines, "max_lines")


@dataclass
class SimulateConfig:
    """What `rvtssm simulate` turns into events. `sensor=NAME` selects the camera."""

    video: str | None = None
    """A video file, or a folder of pictures, which are sorted by name."""
    labels: str | None = None
    """MOT text, COCO JSON, or a folder with one YOLO text or Pascal VOC XML file per frame."""
    label_format: str | None = None
    """mot, coco, yolo or voc; null: by suffix (.txt mot, .json coco), or by files."""
    label_hz: float | None = None
    """Interpolate boxes along tracks to this rate; null: labels at the frames."""
    classes: list[str] | None = None
    """MOT, YOLO: names of the class numbers; COCO, VOC: names of the classes to keep."""
    fps: float | None = None
    """Frames per second; null: the rate in the video file; a folder needs a number."""
    linear: bool | None = None
    """Whether pixel values are proportional to light; null: no with 8 bits (sRGB), else yes."""
    max_motion_px: float = 1.0
    """Largest motion between two interpolated frames."""
    split: str = "train"
    """Split of the dataset to write: train, val or test."""

    def __post_init__(self) -> None:
        check_choice("simulate.label_format", self.label_format, ("mot", "coco", "yolo", "voc", None))
        check_choice("simulate.split", self.split, ("train", "val", "test"))
        check_positive("simulate", self, "label_hz", "fps", "max_motion_px")


@dataclass
class WorldsConfig(DemoSettings):
    """All settings, with those of open worlds and of videos."""

    synthetic: OpenWorldConfig = field(default_factory=OpenWorldConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)


def video_path(config: WorldsConfig) -> str:
    """Return what to simulate; raise UserError if it or the folder to write to is missing."""
    needed(config.out, "out=DIR", "the folder of the dataset that is written")
    return needed(config.simulate.video, "video=FILE", "a video file, or a folder of pictures")

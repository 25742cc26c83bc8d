"""Installs the node for `colcon build`."""

from setuptools import setup

PACKAGE = "rvtssm_ros"

setup(
    name=PACKAGE,
    version="0.1.0",
    packages=[PACKAGE],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (f"share/{PACKAGE}", ["package.xml"]),
        (f"share/{PACKAGE}/launch", ["launch/event_detector.launch.py"]),
    ],
    install_requires=["setuptools"],
    license="Apache-2.0",
    entry_points={"console_scripts": [f"event_detector = {PACKAGE}.event_detector:main"]},
)

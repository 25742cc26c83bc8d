from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterValue

class Node:
    def __init__(
        self,
        *,
        package: str,
        executable: str,
        parameters: list[dict[str, ParameterValue]],
        remappings: list[tuple[str, LaunchConfiguration]],
        output: str,
    ) -> None: ...

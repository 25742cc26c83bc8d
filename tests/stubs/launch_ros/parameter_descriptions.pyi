from launch.substitutions import LaunchConfiguration

class ParameterValue:
    def __init__(self, value: LaunchConfiguration, *, value_type: type | None) -> None: ...

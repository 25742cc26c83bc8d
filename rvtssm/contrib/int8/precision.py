"""What the export knows of this precision."""

from rvtssm.export import Precision

INT8 = Precision(
    (".onnx", ".xml"),
    extra="int8",
    packages=("nncf",),
    lower="rvtssm.contrib.int8.quantization:quantize_detector",
    calibration="rvtssm.contrib.int8.quantization:CalibrationFrames",
    note="in 8 bits, differences of some tenths are usual, and `rvtssm evaluate` shows what they cost in AP",
)

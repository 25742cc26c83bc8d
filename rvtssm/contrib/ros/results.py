"""The format of results of this folder."""

MCAP = ("detections.mcap", "rvtssm.contrib.ros.detection_bag:open_detection_bag")

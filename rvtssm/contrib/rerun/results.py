"""The formats of results of this folder."""

RRD = ("prediction.rrd", "rvtssm.contrib.rerun.rerun_view:open_rerun_file")
RERUN = ("", "rvtssm.contrib.rerun.rerun_view:open_rerun_viewer")

"""Events and boxes in the viewer Rerun."""

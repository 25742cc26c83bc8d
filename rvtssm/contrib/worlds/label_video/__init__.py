"""Turns clips of real streets into recordings with boxes: a detector of pictures, the teacher, finds the objects."""

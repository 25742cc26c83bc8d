"""Labels that a detector makes."""

"""Events become boxes: files, streams and cameras, and the results."""

"""Is the data all right? Recordings and datasets described and checked."""

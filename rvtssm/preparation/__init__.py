"""Raw recordings to prepared sequences on disk, in parallel, and checks of both. No torch."""

"""From the bytes of recordings to events, windows, histograms and labels on disk; never imports torch."""

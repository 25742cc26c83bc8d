"""A trained detector at work: streaming recordings through it, predicting on one file, drawing what it found."""

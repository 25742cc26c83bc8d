"""What recordings and datasets contain, measured in one pass: numbers to print, JSON, pictures."""

"""Training: a Lightning module that wires detector, losses, optimiser and the stored states together."""

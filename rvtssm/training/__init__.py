"""Training: a Lightning module that connects detector, losses, optimiser and stored states."""

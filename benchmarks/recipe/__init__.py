"""Which recipe the demo trains with: optimisers, averaged weights and random windows."""

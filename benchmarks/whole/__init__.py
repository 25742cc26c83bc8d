"""What the whole detector costs: forward, training and live steps beside the limit of the processor, and growth."""

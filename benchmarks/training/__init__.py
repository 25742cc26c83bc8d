"""What a training step costs with each temporal layer and each option, beside RVT's LSTM run step by step."""

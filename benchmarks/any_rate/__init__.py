"""How accuracy holds when a detector that was trained at 20 Hz runs at other rates."""

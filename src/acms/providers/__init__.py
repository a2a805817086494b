"""Token counters and model providers."""

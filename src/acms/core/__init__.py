"""The workshop: pure decisions. Nothing here awaits, reads a clock, draws a random number, logs or does I/O."""

"""Faults injected into the embedded store: kills, power cuts, full disks, broken files (docs/how-to/faults.md)."""

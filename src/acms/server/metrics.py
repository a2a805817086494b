"""What the service counts."""

from __future__ import annotations

__all__ = ["Metrics"]


class Metrics:
    """Counts and times of one process."""

    def request(self, operation: str, method: str, status: int, code: str, seconds: float) -> None:
        """Count one answered request."""

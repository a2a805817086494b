"""Export, restore and verify."""

from acms.branches.export import Problem, Progress, export, pages, verify
from acms.branches.restoring import restore

__all__ = ["Problem", "Progress", "export", "pages", "restore", "verify"]

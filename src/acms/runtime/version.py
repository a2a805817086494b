"""The version of the installed release."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("acms-engine")
except PackageNotFoundError:  # a tree that was never installed
    __version__ = "unknown"

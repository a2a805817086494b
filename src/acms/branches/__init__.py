"""Branches: forks, tags, diffs, copies between stores, export and import."""

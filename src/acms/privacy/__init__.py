"""Privacy: detectors of secrets and personal data, the stage in front of every reader, scans of what is stored."""

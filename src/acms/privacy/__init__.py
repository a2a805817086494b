"""Privacy: detectors of secrets and personal data, the redaction stage before every reader, scans of stored data."""

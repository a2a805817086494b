"""The operations of the HTTP service, by capability."""

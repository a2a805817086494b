"""The English rules of the offline reflector."""

"""To be described by its first author."""

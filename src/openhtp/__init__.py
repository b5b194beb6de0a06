"""OpenHTP."""

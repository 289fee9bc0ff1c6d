"""The SDK without ``await``, for scripts and notebooks: the same names, results and errors."""

from oncegate.gateway.client.sync import Client, Doubt, Session

__all__ = ["Client", "Doubt", "Session"]

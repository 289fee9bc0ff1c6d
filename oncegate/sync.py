"""The SDK without ``await``, for scripts and notebooks: the same names, results and errors; its recipes too."""

from oncegate.gateway.client import sync_recipes as recipes
from oncegate.gateway.client.sync import Client, Doubt, NeverKnown, NotKnownYet, Session

__all__ = ["Client", "Doubt", "NeverKnown", "NotKnownYet", "Session", "recipes"]

"""The hot path: requests that are answered without aiohttp."""

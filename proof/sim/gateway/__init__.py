"""The real engine and the real gateway, in the simulated world, with clients that speak the session protocol."""

"""The demonstration: learning tasks that really learn, for a fleet of simulated devices on a real server."""

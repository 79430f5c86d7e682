"""UMBP's master protocol: our index served to its clients, and a client that reads a real master."""

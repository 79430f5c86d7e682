"""The `loadback` command: it assembles processes and prints; everything it decides is decided below."""

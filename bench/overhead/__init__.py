"""What the router adds to a request: CPU, latency and memory, beside its rivals, on mock workers."""

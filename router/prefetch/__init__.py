"""Loadback prefetch in the gateway: turns and workers in, the planner's moves out, to agents and engines.

`prefetcher` drives `kvtier.prefetch` in real time; `fleet_view` is what it sees; `executor` does what it wants; `api` is the
surface for clients. Nothing here is on a turn's path: hooks append to a queue and return.
"""

"""vLLM's KV blocks at the agent of this host, by vLLM's own plug-in point (a KV connector), and its packing.

All but `plugin` is imported by the engine's own Python, in an environment that knows nothing of this project: standard library,
msgspec, xxhash, torch, and of this project kvtier.page, kvtier.wire and kvtier.client.
"""

"""SGLang's L3 by its own plug-in point, `--hicache-storage-backend dynamic`: the class inside the engine, and its packing.

`settings`, `space`, `host_pages` and `storage` are imported by the engine's own Python, in an environment that knows nothing of
this project: standard library, msgspec, xxhash, and of this project kvtier.page, .wire, .client and .copy (native where
loadback-hip is installed beside the engine).
"""

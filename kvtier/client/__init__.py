"""An agent's client inside an engine: blocking, thin, and never in the way of the engine for longer than its deadlines.

Needs the standard library, msgspec and xxhash; of this project kvtier.page, kvtier.wire and kvtier.copy.
"""

"""Routers and policies on one real prefill/decode pool: the same recorded sessions, a slow worker, forced migration."""

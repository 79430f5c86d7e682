"""An index that several gateways share: one interface over memory and Redis, and the sharing of what a gateway learns."""

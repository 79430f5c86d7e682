"""The gateway's view of the tiers that outlive an engine: what nodes hold, how they fare, and what they are asked to keep."""

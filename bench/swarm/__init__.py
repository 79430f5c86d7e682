"""Agent sessions as load: several append-only threads at once, tools run on the client's side, idle gaps, subagent bursts."""

"""Files of settings: what is wrong in one, for agents and gateways alike."""

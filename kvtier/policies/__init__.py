"""Choices that an operator makes: small values with one question each. In YAML each is named by its `policy` key."""

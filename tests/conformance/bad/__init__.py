"""Gateways that are wrong on purpose: what the suite must fail. Not for use."""

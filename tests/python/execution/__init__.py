"""Checks sharding rules by running operators on shards; see ``harness``."""

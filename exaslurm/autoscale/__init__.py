"""How many replicas of each shard are wanted, by what the shards have to do."""

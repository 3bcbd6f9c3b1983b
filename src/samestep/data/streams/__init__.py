"""Data that comes as a stream: shards that are found by an index, and what can only be read in order."""

"""The set of seen fingerprints in Redis."""

"""How fingerprints are kept on the server: which sets and filters there are, and what they offer."""

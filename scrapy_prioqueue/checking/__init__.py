"""Reads the code of a spider for what differs when several workers run it; no crawl, and nothing of it on a worker."""

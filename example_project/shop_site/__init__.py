"""A shop that exists only to be crawled: pages from a seed, whims included, served on loopback; nothing of Scrapy."""

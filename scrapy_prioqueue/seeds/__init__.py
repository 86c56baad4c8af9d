"""Seeds: URLs and requests that other programs push to plain Redis keys, turned into requests of the crawl."""

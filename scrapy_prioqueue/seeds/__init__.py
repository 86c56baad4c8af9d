"""Seeds: URLs and requests that other programs push to plain keys, turned into requests of the crawl."""

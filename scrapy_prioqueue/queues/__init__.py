"""The scheduler's queues: over a frontier, over Scrapy's own queues, or one that rejects all requests."""

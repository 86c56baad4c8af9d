"""Where the scheduler puts requests and gets them from: a frontier, Scrapy's disk queue, or nothing at all."""

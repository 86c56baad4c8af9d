"""The report on a crawl: one HTML file with everything in it, for `scrapy frontier report`."""

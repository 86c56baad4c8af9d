"""The page of `scrapy frontier dashboard`: a crawl at a glance, live; needs the extra of that name."""

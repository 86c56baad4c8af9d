"""The dashboard: live web pages about a crawl, for `scrapy frontier dashboard`; needs the extra `dashboard`."""

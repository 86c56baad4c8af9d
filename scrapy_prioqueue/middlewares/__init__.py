"""What Scrapy runs besides the scheduler, and what spiders call."""

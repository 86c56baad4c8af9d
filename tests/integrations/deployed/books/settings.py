"""Settings of a project that is deployed to scrapyd."""

SPIDER_MODULES = ["books.spiders"]
SCHEDULER = "scrapy_prioqueue.Scheduler"
PRIOQUEUE_FALLBACK = "error"
PRIOQUEUE_LEASE_TTL = 3
CONCURRENT_REQUESTS = 4
CONCURRENT_REQUESTS_PER_DOMAIN = 4
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False

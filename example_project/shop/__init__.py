"""The Scrapy project that crawls the shop; its settings are the shortest way into scrapy-prioqueue."""

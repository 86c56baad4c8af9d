"""What stands between Scrapy's engine and the frontier: outbox, inbox, and the exchange loop that joins them."""

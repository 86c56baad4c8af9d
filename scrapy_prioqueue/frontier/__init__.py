"""Where the requests of a crawl are kept: one interface (`base`), one folder or module per kind of storage."""

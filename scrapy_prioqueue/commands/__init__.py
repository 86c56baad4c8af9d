"""The operators' command `scrapy frontier …`: options, tables, JSON and exit codes.

``frontier`` is Scrapy's command, ``verbs`` holds one small module per verb, and ``context`` finds the frontier that a
command is about. `frontier.redis.operators.inspector` reads what the verbs show.
"""

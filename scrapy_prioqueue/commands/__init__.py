"""The command line for operators, `scrapy frontier …`: options, tables, JSON and exit codes; what it shows is read by
`frontier.redis.operators.inspector`.

``frontier`` is Scrapy's command, ``verbs`` holds one small module per verb, ``context`` finds out which frontier is
meant.
"""

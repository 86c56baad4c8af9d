"""The crawl of the shop with everything going wrong: what goes wrong, when, and what is left of the crawl."""

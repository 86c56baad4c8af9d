"""Middlewares and a pipeline for Scrapy, and functions that spiders call."""

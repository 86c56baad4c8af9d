"""What watches a crawl: readings of its frontier that cost the server little, for pages, metrics and autoscalers."""

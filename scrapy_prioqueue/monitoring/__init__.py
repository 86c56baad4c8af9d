"""Monitoring: readings of a frontier that cost the server little, for the dashboard, metrics and autoscalers."""

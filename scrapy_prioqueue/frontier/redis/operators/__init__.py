"""What programs that are no workers read and change. The workers' side imports nothing of it."""

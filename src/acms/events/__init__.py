"""What happens to a log, told to others: a stream that whoever reads can resume, and webhooks."""

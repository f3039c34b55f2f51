"""The shop's live page: figures from the aggregate topics, pushed to every open browser."""

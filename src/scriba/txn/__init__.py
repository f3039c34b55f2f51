"""The transaction coordinator: which transactions are open, and how each of them ended."""

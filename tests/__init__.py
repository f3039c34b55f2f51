"""All tests, from single rooms to foreign programs; see CONTRIBUTING.md."""

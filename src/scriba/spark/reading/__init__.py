"""Reads topics into rows: where a query stands, which ranges its tasks read, and how."""

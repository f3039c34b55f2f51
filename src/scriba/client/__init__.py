"""Talking to a broker over the public protocol."""

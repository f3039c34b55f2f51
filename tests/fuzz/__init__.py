"""Bytes that nobody has checked, against the extension: what it takes from the network or the disk.

    python -m tests.fuzz [--seconds 60] [target ...]      make fuzz

`targets` calls it and holds its answers against the fallback's. libFuzzer makes up the bytes, led
by the branches that they take, in an extension built with clang's AddressSanitizer and
UndefinedBehaviorSanitizer. What it kept lies in `corpus`, with every input that once found
something; `tests/unit/native/test_corpus.py` plays it back in every run, without libFuzzer.
"""

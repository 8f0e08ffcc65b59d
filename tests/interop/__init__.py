"""The real clients as judges of what turnfs writes; run by `scripts/interop`, which tells how.

`samples` reads tests/samples, `trial` copies a sample, cuts the copy with `turnfs` and judges it, `scenes` plays what
a sample cannot hold, `client` and one module per client know how a client is installed, started and listed, `model` is
the scripted model that it talks to, `judge` compares. Python standard library only.
"""

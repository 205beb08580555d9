"""Drawing: a Trace in; terminal text and pictures out.

Sees traces only, never records; computes no clock conversion and opens no file but the picture it writes.
Every name that came out of a file goes through `escape.visible` before it reaches a terminal.
"""

"""Kernels and programs, recorded into a Trace: joins two stages that do not know each other, capture and trace.

It imports nothing, so that a process that only waits for its first launch need not: `warplens.Kernel` is in kernel.py,
`warplens.record` in recording.py.
"""

"""What follows from a trace's tables and stands in none of them.

In: tables of a Trace. Out: columns over their rows. Must not read files, and must not draw: that is `render`.
"""

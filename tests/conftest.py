"""For all tests: Ctrl-C arrives, also where they were started in the background of a shell, which has it ignored."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

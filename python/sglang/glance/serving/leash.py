"""Run as a script: ``leash.py COMMAND...`` becomes COMMAND, on the leash of its standard input.

Whoever starts it holds the other end of a pipe. When that process ends, by whatever signal, the
kernel closes the pipe and the whole process group is killed, COMMAND's own children too. A signal
at a parent's death (Linux's PR_SET_PDEATHSIG) would come when the parent's *thread* ends, and only
to COMMAND. Start it as the leader of a group of its own; nothing of SGLang is imported.
"""

import os
import signal
import sys


def watch() -> None:
    """Kill this group once nobody can write to standard input any more."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the group ends when COMMAND has, or all at once
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    if os.getpgrp() != os.getpid():
        raise SystemExit("leash.py must lead a process group of its own: start_new_session=True")
    if os.fork() == 0:
        watch()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

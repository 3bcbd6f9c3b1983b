"""The watchdog: ends a run that hangs, and names the rank to blame.

- activity.py: what each thread of this rank does; training reports it here
- limits.py: how long each activity may go on without progress (`WatchdogConfig`)
- source_lines.py: which line of a stack is the recipe's
- stack_dump.py: where a thread is, which collectives the rank began, how much memory it holds; faulthandler dumps
- heartbeat.py: sends that to the other ranks, as heartbeats through the store, and reads theirs
- blame.py: which rank the others wait for, or which one left the common way; pure functions
- uneven.py: which rank made other updates than the rest; pure functions
- watchdog.py: the thread that checks once a second and finds out whether the run hangs
- ending.py: how all ranks end once the run hangs; torchrun_agent.py and mpiexec.py end a launcher that hangs too
"""

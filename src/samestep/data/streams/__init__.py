"""Streams: data that comes one row after the other.

The order stays a function of the step (data/windowed.py): shards in a keyed order, rows shuffled in keyed windows.
Giving shards to ranks, as is usual, would make the order depend on their number, and a resume at another one lose rows.

- Shards with an index have rows by number (index.py, shards.py), like any other data, and an order that keeps what is
  read close together.
- What can only be read in order (source.py) is read as a whole by every process, which keeps its own rows of a window
  (reading.py). So its place in the checkpoint is one for all ranks, and decoding, which takes longest, is done once.
- A state of its own saves reading again. It is used only if it leads to the right rows when it is tried (probe.py), and
  tried again at a resume, by the digest of the row it leads to: a shuffle buffer, for one, is in no state.
"""

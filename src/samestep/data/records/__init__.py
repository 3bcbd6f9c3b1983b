"""Records that people have: files and folders of JSON, tables and Arrow, read by one set of rules."""

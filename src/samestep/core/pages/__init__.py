"""What is shown to people, each way once: HTML pages, drawings in them, and tables for pages and the console."""

"""`samestep evaluate RUN_A RUN_B`: two generators complete the same prompts, and a judge compares the texts.

compare.py (options and the whole of it), records.py (what they are compared on), judges.py (who compares),
endpoint.py (a judge over HTTP), results.py (metrics and tables), page.py (the same as an HTML page)
"""

"""A small retriever learned from a large one.

data         records.py (queries, passages, negatives), mixed_records.py (several data sets by weight), text_table.py
             (every text once), python_docs.py and doc_sections.py (the data that comes with Python)
measuring    retrieval_set.py (queries, a corpus and grades; folders of BEIR), retrieval_metrics.py (nDCG, MRR, Recall),
             bm25.py (ranking by words), mteb_scores.py (tasks of MTEB)
"""

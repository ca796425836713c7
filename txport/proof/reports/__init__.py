"""Reports of comparisons: the report, its tables and pages for people and for CI, and drift from an earlier report."""

"""What is said of a comparison: a report, its tables and pages for people and for CI, and drift from an earlier one."""

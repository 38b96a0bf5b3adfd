"""`python -m flagbench_cases prepare CASE ...`: from downloaded files to the folders that a run reads."""

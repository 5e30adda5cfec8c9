"""The ledger of empirical claims: every claim judged from the tables on disk, as a table, a file and a page."""

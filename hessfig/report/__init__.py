"""The report: what lies in an outputs folder, as pages that open from the file system, without server or network."""

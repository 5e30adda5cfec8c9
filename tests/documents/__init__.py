"""What users read and install: pages, examples, notebooks, the site, the wheel."""

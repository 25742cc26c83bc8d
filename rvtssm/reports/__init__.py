"""Turn numbers into tables, plots and pages."""

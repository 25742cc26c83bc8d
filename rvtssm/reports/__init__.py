"""Numbers become tables, plots and pages."""

"""Many trainings in one table, and the audit of a detector's memory."""

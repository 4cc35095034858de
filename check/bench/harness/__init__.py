"""The benchmark harness: targets, rows, tables and plots."""

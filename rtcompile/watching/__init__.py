"""Information about builds: logs, traces, progress, reports."""
